"""Arguments that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, TypeVar

from .heap_policy import PRESETS, HeapPolicy, parse_bytes
from .options import LEVELS
from .workers import MAX_THREADS

Made = TypeVar("Made")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def threads(text: str) -> int:
    """A number of threads that a runtime can have."""
    value = positive(text)
    if value > MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{value} is more than {MAX_THREADS}")
    return value


def size(text: str) -> int:
    """A number of bytes, as `parse_bytes` reads it."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _step(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} does not lie in [0, 100]")
    return value


def _preset(text: str) -> str:
    if text not in PRESETS:
        raise argparse.ArgumentTypeError(f"no preset {text!r}; there are {', '.join(PRESETS)}")
    return text


def _named_file(text: str) -> tuple[str, str]:
    name, _, file = text.partition("=")
    if not name or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE.npy or NAME=VALUE")
    return name, file


def _named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition("=")
    if not name or not dims:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZES")
    try:
        shape = tuple(int(d) for d in dims.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: not whole numbers separated by commas") from None
    if min(shape) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: dimensions must not be negative")
    return name, shape


def _dimension(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE")
    return name, int(size)


def add_feeds(parser: argparse.ArgumentParser) -> None:
    """The options that `given` reads."""
    parser.add_argument(
        "--input",
        type=_named_file,
        action="append",
        metavar="NAME=FILE.npy",
        help="an input, from a file or as a number or JSON list (ids=[1,2,3]); random without",
    )
    parser.add_argument(
        "--shape", type=_named_shape, action="append", metavar="NAME=1,3,224,224", help="shape of a random input"
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    """The options that `session` reads."""
    parser.add_argument(
        "--no-mem-pattern", action="store_true", help="allocate intermediates one by one, as a browser does"
    )
    parser.add_argument(
        "--graph-optimization-level", choices=LEVELS, default="all", metavar="LEVEL", help=f"{', '.join(LEVELS)} (all)"
    )
    parser.add_argument(
        "--free-dimension",
        type=_dimension,
        action="append",
        metavar="NAME=SIZE",
        help="size of a symbolic dimension of the inputs; may be given again",
    )


def session(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of SessionOptions."""
    return {
        "enable_mem_pattern": not args.no_mem_pattern,
        "graph_optimization_level": args.graph_optimization_level,
        "free_dimension_overrides": _each_once(args, "--free-dimension", args.free_dimension),
    }


def _each_once(args: argparse.Namespace, option: str, items: Sequence[tuple[str, Made]] | None) -> dict[str, Made]:
    names = [name for name, _ in items or ()]
    for name in names:
        if names.count(name) > 1:
            args.parser.error(f"{option} gives {name!r} more than once")
    return dict(items or ())


def given(args: argparse.Namespace) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Files and shapes by input; ``args.parser`` reports what contradicts itself."""
    files, shapes = _each_once(args, "--input", args.input), _each_once(args, "--shape", args.shape)
    for name in files.keys() & shapes.keys():
        args.parser.error(f"--input and --shape both give {name!r}; what is given has its own shape")
    return files, shapes


def add_policy(parser: argparse.ArgumentParser, *, several: bool) -> None:
    """The options that `changes` reads, and ``--preset``: one, or ``several``."""
    parser.add_argument(
        "--preset",
        type=_preset,
        action="append" if several else "store",
        metavar="NAME",
        help=f"known limits and growth: {', '.join(PRESETS)}{'; may be given again' if several else ''}",
    )
    parser.add_argument("--initial", type=size, metavar="SIZE", help="first size of linear memory, such as 64MiB")
    parser.add_argument("--maximum", type=size, metavar="SIZE", help="the heap's own limit, such as 512MiB")
    parser.add_argument(
        "--memory-maximum", type=size, metavar="SIZE", help="the engine's limit, past which memory does not grow"
    )
    parser.add_argument("--step", type=_step, metavar="PART", help="grow by this part of the size (0.2)")
    parser.add_argument(
        "--cap", type=size, metavar="SIZE", help="grow by at most so much over the need (96MiB); 0: any"
    )
    parser.add_argument("--linear-step", type=size, metavar="SIZE", help="grow by so much instead")


# Options by the field of HeapPolicy that they set.
_FIELDS = {
    "initial": "initial",
    "maximum": "maximum",
    "memory_maximum": "memory_maximum",
    "geometric_step": "step",
    "geometric_cap": "cap",
    "linear_step": "linear_step",
}


def changes(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `HeapPolicy` that options set."""
    values = {field: getattr(args, option) for field, option in _FIELDS.items()}
    return {field: value for field, value in values.items() if value is not None}


def policy(args: argparse.Namespace) -> HeapPolicy:
    """The one preset and the options together; ``args.parser`` reports a policy that no heap can have."""
    # Without a first size of its own a smaller limit makes a smaller one.
    named = PRESETS[args.preset].policy if args.preset else HeapPolicy()
    found = named.with_(**{"initial": None, **changes(args)})
    try:
        found.validate()
    except ValueError as error:
        args.parser.error(str(error))
    return found
