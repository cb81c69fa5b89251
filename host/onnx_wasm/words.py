"""Words of messages: numbers with their nouns, names that may be meant."""

from __future__ import annotations

from collections.abc import Iterable


def noun(number: int, singular: str) -> str:
    """The noun that goes with a number."""
    return singular if number == 1 else f"{singular}s"


def counted(number: int, singular: str) -> str:
    """A number and its noun: "1 block", "1,024 blocks"."""
    return f"{number:,} {noun(number, singular)}"


def meant(name: str, names: Iterable[str]) -> str:
    """ "; did you mean 'x'?" where there are names like one that there is not, else nothing."""
    # Only an error pays for its import.
    import difflib

    names = list(names)
    close = [n for n in names if n.lower() == name.lower()] or difflib.get_close_matches(name, names)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
