"""The operators, one family a file. Importing a file registers its ops."""
