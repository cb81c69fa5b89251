"""What the build makes of functions that are inlined."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import wasmtime

from onnx_wasm.build import KernelTable, TemplateError, assemble, render
from onnx_wasm.context import SILENT


def linked(table: KernelTable, *functions: str) -> Callable[[int], int]:
    """What the module of these functions exports as "f"."""
    store = wasmtime.Store()
    text = table.link(f"(module {''.join(functions)})")
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, assemble(text)), []).exports(store)
    return functools.partial(exports["f"], store)


def test_an_inlined_function_answers_as_a_called_one():
    """With a loop, a return out of it, a variable that must be 0 at first, and arguments that are calls themselves."""
    divisor = """  ;; the least (from 2 on
        (local $i i32)
        (if (i32.le_u (local.get $n) (i32.const 1)) (then (return (i32.const 1))))
        (loop $next
          (if (i32.eqz (i32.rem_u (local.get $n) (i32.add (local.get $i) (i32.const 2))))
            (then (return (i32.add (local.get $i) (i32.const 2)))))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br $next))
        (unreachable)"""
    quotient = "(i32.div_u (local.get $n) (call $divisor (local.get $n)))"
    most = """(local $n i32) (local $best i32)
        (loop $next
          (local.set $n (i32.add (local.get $n) (i32.const 1)))
          (if (i32.gt_u (call $divisor (call $quotient (local.get $n))) (local.get $best))
            (then (local.set $best (call $divisor (call $quotient (local.get $n))))))
          (br_if $next (i32.lt_u (local.get $n) (local.get $end))))
        (local.get $best)"""
    answers = []
    for names in itertools.product(("function", "inline"), repeat=2):
        table = KernelTable()
        made = [table.function("most", '(export "f") (param $end i32) (result i32)', lambda: most)]
        for name, how, body in zip(("divisor", "quotient"), names, (divisor, quotient), strict=True):
            made.append(getattr(table, how)(name, "(param $n i32) (result i32)", lambda body=body: body))
        answers.append([*map(linked(table, *made), range(1, 40))])
    assert answers[0][-1] == 19
    assert all(a == answers[0] for a in answers)


def test_kernels_whose_records_may_be_left_out_report_nothing():
    text, kernels = render(Path(__file__).parent.parent, relaxed=True)
    bodies = dict(re.findall(r"\(func \$(\S+)(.*?)(?=\(func |\Z)", text, re.DOTALL))
    called = {name: set(re.findall(r"\(call \$([\w.]+)", body)) for name, body in bodies.items()}
    silent = [name for name in kernels if name.startswith(SILENT)]
    assert len(silent) > 10
    assert "fail" in called["gather_rows"]
    reached = set(silent)
    while new := {inner for name in reached for inner in called[name]} - reached:
        reached |= new
    assert "fail" not in reached


def test_an_inlined_function_must_not_call_itself():
    table = KernelTable()
    table.inline("a", "(param $n i32)", lambda: "(call $b (local.get $n))")
    table.inline("b", "(param $n i32)", lambda: "(call $a (local.get $n))")
    with pytest.raises(TemplateError, match="call each other: f a b a"):
        linked(table, table.function("f", "", lambda: "(call $a (i32.const 1))"))


def test_the_arguments_of_an_inlined_function_are_counted():
    table = KernelTable()
    table.inline("a", "(param $n i32)", lambda: "")
    with pytest.raises(TemplateError, match="f calls a with other arguments"):
        linked(table, table.function("f", "", lambda: "(i32.const 1) (call $a)"))
