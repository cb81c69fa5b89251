"""Render the WAT templates, assemble the two module variants, write the kernel manifest.

Runs at build time only (``build.sh`` and the hatchling hook), so it imports nothing of the
package. What it writes into ``_wasm/``:

* ``relaxed.wasm``: multiply-add is ``f32x4.relaxed_madd``;
* ``strict.wasm``: multiply-add is a multiply and an add, the same bits on every machine;
* ``manifest.json``: the kernels in table order with their argument types, and the build hash
  that the modules carry as the exported global ``build_hash``. Kernel ids are table indices, so
  a module and a manifest of different builds must never meet.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import wasmtime

# Argument type -> (WAT value type, load instruction, words in the record).
# "words" is a list of i32 behind the fixed arguments; the kernel's local holds its address. "scratch" is the address of
# working memory and the bytes of it that one thread has; the local holds the address of this thread's.
ARGUMENT_TYPES: dict[str, tuple[str, str, int]] = {
    "ptr": ("i32", "i32.load", 1),
    "i32": ("i32", "i32.load", 1),
    "f32": ("f32", "f32.load", 1),
    "i64": ("i64", "i64.load align=4", 2),
    "f64": ("f64", "f64.load align=4", 2),
    "words": ("i32", "i32.load", 1),
    "scratch": ("i32", "i32.load", 2),
}
MAX_KERNELS = 1 << 15  # the upper bit of the id says that a record is worth sharing between threads
HEADER_WORDS = 2  # kernel id | length << 16, units
_LOCAL = re.compile(r"\(local (\$[^\s)]+) ([^\s)]+)\)")
_PARAMETER = re.compile(r"\(param (\$[^\s)]+) ([^\s)]+)\)")
_RESULT = re.compile(r"\(result [^)]+\)")
_LABEL = re.compile(r"\((?:block|loop|if) (\$[^\s()]+)")
_CALL = re.compile(r"\(call \$([^\s()]+)")
_COMMENT = re.compile(r";;[^\n]*")
_PLACE = re.compile(r"\{\{(\w+)\}\}\n")

VARIANTS = {"relaxed": True, "strict": False}


class TemplateError(Exception):
    """A template breaks a rule of the kernel ABI."""


class Inlined(NamedTuple):
    """A function that has no code of its own: its body stands in for each call."""

    signature: str
    body: str

    def expand(self, body: str, arguments: list[str], suffix: str) -> str:
        """The code for one call; ``body`` is the function's, after expansion. The suffix ends the function's names."""
        parameters, variables = _PARAMETER.findall(self.signature), _LOCAL.findall(self.body)
        own = {name for name, _ in parameters + variables} | set(_LABEL.findall(self.body))
        body = re.sub(r"(?<!call )\$[^\s()]+", lambda m: m[0] + suffix if m[0] in own else m[0], body)
        body = body.replace("(return", f"(br $return{suffix}")
        # The call may be in a loop: each time its variables must be 0 at first.
        zeros = (f"({kind}.const {'i64x2 0 0' if kind == 'v128' else '0'})" for _, kind in variables)
        values = [*arguments, *zeros]
        names = parameters + variables
        declared = " ".join(f"(local {name}{suffix} {kind})" for name, kind in parameters)
        sets = " ".join(f"(local.set {n}{suffix} {value})" for (n, _), value in zip(names, values, strict=True))
        result = _RESULT.search(self.signature)
        return f"(block $return{suffix} {result[0] if result else ''} {declared}\n{sets}\n{body})"


class _Function(NamedTuple):
    """The parts of a function that is not linked yet."""

    head: str
    begin: str
    """Locals and code that come before the body."""
    body: str
    names: frozenset[str] = frozenset()
    """Those that the body must not declare again."""


class KernelTable:
    """The kernels of one render, in table order, and the ``kernel`` macro that adds them."""

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, str]] = {}
        self.functions: dict[str, _Function] = {}
        self.inlined: dict[str, Inlined] = {}

    def kernel(self, name: str, caller: Any = None, **args: str) -> str:
        """Emit one kernel: a function of type ``(rec, begin, end)`` that loads its arguments."""
        if name in self.kernels:
            raise TemplateError(f"kernel {name} is defined twice")
        unknown = {t for t in args.values() if t not in ARGUMENT_TYPES}
        if unknown:
            raise TemplateError(f"kernel {name}: unknown argument types {sorted(unknown)}")
        self.kernels[name] = args
        declared, loads, offset = [], [], 4 * HEADER_WORDS
        for arg, kind in args.items():
            value_type, load, words = ARGUMENT_TYPES[kind]
            instruction, _, align = load.partition(" ")
            declared.append(f"(local ${arg} {value_type})")
            value = f"({instruction} offset={offset} {align} (local.get $rec))"
            if kind == "words":
                value = f"(i32.add (local.get $rec) {value})"
            elif kind == "scratch":
                stride = f"(i32.load offset={offset + 4} (local.get $rec))"
                value = f"(i32.add {value} (i32.mul (global.get $thread) {stride}))"
            loads.append(f"(local.set ${arg} {value})")
            offset += 4 * words
        head = "(type $kernel) (param $rec i32) (param $begin i32) (param $end i32)"
        names = frozenset({"$rec", "$begin", "$end"} | {f"${a}" for a in args})
        begin = f"{' '.join(declared)}\n  " + "\n  ".join(loads)
        return self._place(name, _Function(head, begin, caller(), names))

    def function(self, name: str, signature: str, caller: Any) -> str:
        """Emit a plain function whose locals may be declared anywhere in its body."""
        return self._place(name, _Function(signature, "", caller()))

    def _place(self, name: str, function: _Function) -> str:
        # `link` puts its code here: what it calls may be defined later.
        self.functions[name] = function._replace(body=_COMMENT.sub("", function.body))
        return f"{{{{{name}}}}}\n"

    def inline(self, name: str, signature: str, caller: Any) -> str:
        """Define a function that others, and kernels, have a copy of wherever they call it: the engine inlines nothing.

        Its arguments are expressions in parentheses.
        """
        self.inlined[name] = Inlined(signature, _COMMENT.sub("", caller()))
        return ""

    def link(self, text: str) -> str:
        """``text`` with the code of all functions in it."""
        return _PLACE.sub(lambda place: self._code(place[1]), text)

    def _code(self, name: str) -> str:
        function = self.functions[name]
        body, hoisted = hoist_locals(self._expand(function.body, itertools.count(1), [name]), function.names)
        return f"(func ${name} {function.head}\n  {' '.join(hoisted)} {function.begin}\n{body})\n"

    def _expand(self, text: str, numbers: Iterator[int], within: list[str]) -> str:
        parts, at = [], 0
        for call in _CALL.finditer(text):
            if call.start() < at or (function := self.inlined.get(call[1])) is None:
                continue
            if call[1] in within:
                raise TemplateError(f"inlined functions call each other: {' '.join([*within, call[1]])}")
            arguments, end = _expressions(text, call.end())
            if len(arguments) != len(_PARAMETER.findall(function.signature)):
                raise TemplateError(f"{within[-1]} calls {call[1]} with other arguments than {function.signature}")
            arguments = [self._expand(a, numbers, within) for a in arguments]
            body = self._expand(function.body, numbers, [*within, call[1]])
            parts += [text[at : call.start()], function.expand(body, arguments, f".{next(numbers)}")]
            at = end + 1
        return "".join(parts) + text[at:]


def _expressions(text: str, at: int) -> tuple[list[str], int]:
    """The expressions from ``at`` on, and where the parenthesis stands that closes the one they are in."""
    found, depth = [], 0
    for parenthesis in re.finditer(r"[()]", text[at:]):
        if parenthesis[0] == "(":
            depth += 1
            if depth == 1:
                start = at + parenthesis.start()
        elif parenthesis[0] == ")":
            depth -= 1
            if depth == 0:
                found.append(text[start : at + parenthesis.end()])
            elif depth < 0:
                return found, at + parenthesis.start()
    raise TemplateError(f"a parenthesis is not closed: {text[at : at + 80]}")


def hoist_locals(body: str, reserved: frozenset[str] | set[str] = frozenset()) -> tuple[str, list[str]]:
    """Take ``(local $x type)`` out of a body; the same name may recur with the same type."""
    seen: dict[str, str] = {}
    for name, value_type in _LOCAL.findall(body):
        if name in reserved or seen.setdefault(name, value_type) != value_type:
            raise TemplateError(f"local {name} is declared twice with different meanings")
    return _LOCAL.sub("", body), [f"(local {n} {t})" for n, t in seen.items()]


def render(root: Path, *, relaxed: bool) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the module's text without its hash, and its kernels in table order."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([root / "kernels_wat", root / "wasm"]),
        line_statement_prefix=";;%",
        line_comment_prefix=";;#",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=["jinja2.ext.do"],
    )
    table = KernelTable()
    env.globals.update(kernel=table.kernel, function=table.function, inline=table.inline, relaxed=relaxed, fail=_fail)
    parts = []
    for folder in ("wasm", "kernels_wat"):
        for path in sorted((root / folder).glob("*.wat.j2")):
            if path.name != "module.wat.j2" and not path.name.startswith("_"):
                parts.append(f";; {folder}/{path.name}\n{env.get_template(path.name).render()}")
    if len(table.kernels) > MAX_KERNELS:
        raise TemplateError(f"{len(table.kernels)} kernels; a record can name {MAX_KERNELS}")
    module = env.get_template("module.wat.j2")
    text = module.render(functions="\n".join(parts), kernels=list(table.kernels), build_hash="{build_hash}")
    return table.link(text), table.kernels


def _fail(message: str) -> str:
    raise TemplateError(message)


def build(root: Path, out: Path) -> None:
    """Assemble both variants of the sources under ``root`` into the folder ``out``."""
    rendered = {name: render(root, relaxed=relaxed) for name, relaxed in VARIANTS.items()}
    kernels = [k for _, k in rendered.values()]
    if any(k != kernels[0] for k in kernels):
        raise TemplateError("the variants declare different kernels")
    digest = hashlib.sha256("\0".join(text for text, _ in rendered.values()).encode()).digest()
    build_hash = int.from_bytes(digest[:8], "little", signed=True)
    out.mkdir(parents=True, exist_ok=True)
    for name, (text, _) in rendered.items():
        wat = text.replace("{build_hash}", str(build_hash))
        _replace(out / f"{name}.wasm", assemble(wat))
    manifest = {"build_hash": build_hash, "kernels": [{"name": n, "args": a} for n, a in kernels[0].items()]}
    _replace(out / "manifest.json", json.dumps(manifest, indent=0).encode())


def assemble(wat: str) -> bytes:
    """WAT text to valid wasm bytes; an error shows the line or the function it is in."""
    config = wasmtime.Config()
    config.wasm_threads = True
    config.wasm_relaxed_simd = True
    config.shared_memory = True
    try:
        wasm = bytes(wasmtime.wat2wasm(wat))
        wasmtime.Module.validate(wasmtime.Engine(config), wasm)
    except wasmtime.WasmtimeError as error:
        raise TemplateError(f"the rendered WAT is not a valid module:\n{error}") from None
    return wasm


def _replace(path: Path, data: bytes) -> None:
    # Written whole or not at all: another process may be loading the file.
    temporary = path.with_suffix(path.suffix + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)


if __name__ == "__main__":
    package = Path(__file__).resolve().parent
    build(package.parent.parent, package / "_wasm")
