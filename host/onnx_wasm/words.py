"""Numbers with their nouns."""

from __future__ import annotations


def noun(number: int, singular: str) -> str:
    """The noun that goes with a number."""
    return singular if number == 1 else f"{singular}s"


def counted(number: int, singular: str) -> str:
    """A number and its noun: "1 block", "1,024 blocks"."""
    return f"{number:,} {noun(number, singular)}"
