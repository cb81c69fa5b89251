"""Random small graphs, what peers say of them, and the comparison with what this package computes."""
