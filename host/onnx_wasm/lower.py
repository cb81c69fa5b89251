"""From a graph and concrete input shapes to records: every node's op is asked to describe its work.

Lowering is a generator. Where a shape or a branch depends on contents that only a run can tell, it yields that value;
the records up to there are a *segment*, which is run, and the value's contents are sent in. What does not depend on
shapes is kept between lowerings (prepare.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .context import Context, HostView, Item, NeedsValueError, Origin, Subgraph, TensorSequence, Value
from .dtypes import STRING
from .errors import REFUSALS, HeapMemoryError, InvalidModelError, OnnxWasmError, ShapeError, UnsupportedModelError
from .fold import MISTAKES, folded
from .functions import body_of
from .items import (
    MAX_AT_ONCE,
    are_ready,
    as_array,
    is_small_known,
    is_string,
    listed,
    named,
    settle,
    values_of,
    weight_of,
)
from .model import Graph, Node
from .ops.transpose import permute
from .prepare import MOVING, PASSING, LoweringCache, Prepared, Step, steps
from .registry import OpDef
from .signatures import check_call, check_declared, misfit
from .transposes import untransposed
from .words import counted

Array = NDArray[Any]
# Iterations that depend on no data are unrolled; past this the host's memory would be at risk.
MAX_RECORDS = 1 << 22
# Of loops within what does not run, so many iterations are looked at in all.
_OUTLINED = 64
Asking = Generator[Value, Array, Any]


class _EndlessError(Exception):
    """What does not run has too many iterations."""


@dataclass(eq=False)
class _Scope:
    """The names of one graph while it is lowered, and what control flow around it still holds."""

    prepared: Prepared
    parent: _Scope | None
    items: dict[str, Item] = field(default_factory=dict)
    args: Sequence[Item | None] = ()
    keep: Sequence[Item] = ()
    checked: bool = True
    """Element types are; ONNX's own bodies of functions mix them."""

    def find(self, name: str) -> Item:
        """What a name stands for, here or in a graph around this one."""
        item = self.items.get(name)
        if item is not None:
            return item
        value = self.prepared.weights.get(name)
        if value is not None:
            return value
        graph = self.prepared.graph
        if name in graph.initializers:
            value = self.prepared.weights[name] = weight_of(graph.initializers[name])
            return value
        if self.parent is None:
            raise InvalidModelError(f"{graph.where}: {name!r} is not computed before it is used")
        item = self.parent.find(name)
        if isinstance(item, Value):
            # A graph that may run many times must not change what was computed once.
            settle(item)
        return item


class Lowering:
    """One lowering under way.

    ``inputs`` are the fed items by name; after `steps` has ended, ``outputs`` are the fetched ones.
    """

    def __init__(
        self,
        cache: LoweringCache,
        inputs: Mapping[str, Item],
        fetches: Sequence[str],
        *,
        evaluate: Callable[[Value], Array] | None = None,
        check: Callable[[], None] = lambda: None,
        fuse: bool = True,
        threads: int = 1,
    ) -> None:
        self._check = check
        self.context = Context(cache.derived, evaluate, fuse=fuse, threads=threads, weights=cache.weights)
        self._evaluate = evaluate
        self.inputs = dict(inputs)
        self.outputs: dict[str, Item] = {}
        self._cache = cache
        self._fetches = tuple(fetches)
        self._scopes: list[_Scope] = []
        self._outlines = 0
        """While only shapes are asked for (`Context.runs`): how many more graphs may be lowered for it."""

    def steps(self) -> Generator[Value, Array, None]:
        """Lower the graph; yields every value whose contents it must know, and wants them sent."""
        prepared = self._cache.of(self._cache.graph)
        for name, item in self.inputs.items():
            if isinstance(item, Value):
                item.uses = prepared.uses[name]
        results = yield from self._graph(self._cache.graph, self.inputs, self._fetches)
        self.outputs = dict(zip(self._fetches, results, strict=True))

    def alive(self) -> set[Value]:
        """Roots of the values that may still be needed."""
        found: set[Value] = set()
        for scope in self._scopes:
            for item in (*scope.items.values(), *scope.args, *scope.keep):
                found.update(v.root for v in values_of(item))
        return found

    def _graph(
        self, graph: Graph, inputs: Mapping[str, Item], fetches: tuple[str, ...], *, isolated: bool = False
    ) -> Generator[Value, Array, list[Item]]:
        """Lower a graph's nodes. An isolated one, a function's body, sees nothing of the graph around it."""
        prepared = self._cache.of(graph)
        parent = self._scopes[-1] if self._scopes and not isolated else None
        scope = _Scope(prepared, parent, dict(inputs))
        scope.checked = not isolated and (parent is None or parent.checked)
        for name, item in inputs.items():
            # What the graph around this one counts as a single use may be several in here, or in several iterations.
            if isinstance(item, Value) and not (isolated and prepared.uses[name] == 1):
                settle(item)
        self._scopes.append(scope)
        for step in steps(prepared, fetches):
            if step.node.index in prepared.settled:
                continue
            args, since = self._arguments(scope, step), len(self.context.records)
            results = self._plainly(scope, step, args) if step.plain else None
            if results is None:
                results = yield from self._node(scope, step, args)
            self._bind(scope, step, results)
            if step.traced:
                self._trace(scope, step, args, since)
            for name in step.last:
                scope.items.pop(name, None)
        fetched = [scope.find(name) for name in fetches]
        self._scopes.pop()
        return fetched

    def _arguments(self, scope: _Scope, step: Step) -> list[Item | None]:
        """The inputs of the node that is now in hand."""
        node, items, weights = step.node, scope.items, scope.prepared.weights
        self.context.node, self.context.opset = node, step.opset
        return [(items.get(i) or weights.get(i) or scope.find(i)) if i else None for i in node.inputs]

    def _plainly(self, scope: _Scope, step: Step, args: list[Item | None]) -> list[Item | None] | None:
        """The results of a node that asks for nothing, as most are; None, and nothing is done, for any other."""
        cx, form = self.context, step.form
        assert form is not None
        # This runs for every node and every shape: what it asks about the inputs, it asks in one go.
        kinds: list[Any] = []
        ready, moved = True, False
        for item in args:
            if item.__class__ is Value:
                kinds.append(item.dtype)
                if item.known is None and not item.const:
                    ready = False
                    moved = moved or item.moved_from is not None
            else:
                kinds.append(item.__class__)
                ready = ready and item is None
        fits = step.fitting.get(tuple(kinds))
        if fits is None:
            fits = self._fits(scope, step, form, args)
        if not fits:
            return None
        if ready:
            made = folded(self.context, form, args)
            if made is None and step.pure:
                made = self._without_run(scope, step, form, args)
            if made is not None:
                return None if made == [NotImplemented] else made
        before = untransposed(cx, args) if moved and form.elementwise else None
        mark = cx.begin()
        try:
            result = self._once(step, form, args if before is None else before[0])
        except NeedsValueError:
            del cx.records[mark:]
            result = NotImplemented
        cx.end(mark, useless=step.pure)
        if result is NotImplemented:
            return None
        if before is not None:
            mark = cx.begin()
            result = permute(cx, result, result.shape, before[1])
            cx.end(mark)
        return listed(result)

    def _node(self, scope: _Scope, step: Step, args: list[Item | None]) -> Asking:
        """The results of any node."""
        node, form = step.node, step.form
        scope.args, scope.keep = args, ()
        if form is not None and form.name not in PASSING and any(isinstance(a, HostView) for a in args):
            for at, item in enumerate(args):
                if isinstance(item, HostView):
                    args[at] = yield from self._look(scope, node.inputs[at], item)
        if form is None or step.expanded:
            results = yield from self._expand(scope, node, args)
        else:
            self._fits(scope, step, form, args)
            ready = folded(self.context, form, args) if are_ready(args) else None
            if ready is not None:
                results = ready
            elif form.name in MOVING and not form.domain and any(map(is_string, args)):
                results = yield from self._move_strings(scope, step, form, args)
            else:
                results = yield from self._call(scope, step, form, args)
            if results == [NotImplemented]:
                results = yield from self._expand(scope, node, args)
        scope.args, scope.keep = (), ()
        return results

    def _fits(self, scope: _Scope, step: Step, form: OpDef, args: Sequence[Item | None]) -> bool:
        """Refuse inputs and attributes that the operator does not take; each combination is looked at once. False, if
        there are strings among them, or what the host has yet to make."""
        kinds = tuple([a.dtype if isinstance(a, Value) else type(a) for a in args])
        if kinds not in step.fitting:
            node = step.node
            check_call(self.context, form, args)
            wrong = misfit(node.op_type, step.opset, args) if scope.checked and not node.domain else None
            if wrong is not None:
                self.context.fail(wrong, InvalidModelError)
            step.fitting[kinds] = STRING not in kinds and HostView not in kinds
        return step.fitting[kinds]

    def _look(self, scope: _Scope, name: str, view: HostView) -> Asking:
        """The tensor of strings that a view is; a node computes with it, so the run must tell what is in it."""
        arrays = []
        for source in view.sources:
            arrays.append((yield from self._read(source)))
        made = view.convert(*arrays)
        if not isinstance(made, np.ndarray):
            self.context.fail(f"input {name!r} is no tensor", UnsupportedModelError)
        value = self.context.known(as_array(made))
        if name in scope.items:
            scope.items[name] = value
        return value

    def _move_strings(self, scope: _Scope, step: Step, form: OpDef, args: Sequence[Item | None]) -> Asking:
        """Let an operator move the numbers of strings, and look the strings up where they have come to. Number 0 is "",
        with which operators fill."""
        pool: list[Array] = [np.array([""], object)]
        numbered: list[Item | None] = []
        count = 1
        for item in args:
            if isinstance(item, Value) and item.dtype is STRING and item.known is not None:
                numbers = np.arange(count, count + item.size, dtype=np.int64).reshape(item.shape)
                pool.append(item.known.reshape(-1))
                count += item.size
                item = self.context.known(numbers)
            numbered.append(item)
        scope.args = numbered
        strings = np.concatenate(pool)
        moved = yield from self._call(scope, step, form, numbered)
        return [named(strings, m) if isinstance(m, Value) else None for m in moved]

    def _call(
        self, scope: _Scope, step: Step, form: OpDef, args: Sequence[Item | None]
    ) -> Generator[Value, Array, list[Item | None]]:
        cx = self.context
        if step.pure and are_ready(args):
            ready = self._without_run(scope, step, form, args)
            if ready is not None:
                return ready
        while True:
            mark = len(cx.records)
            try:
                result = self._once(step, form, args)
                return listed((yield from self._drive(scope, result)) if form.generator else result)
            except NeedsValueError as error:
                # The op reads before it emits, so it can be asked again.
                del cx.records[mark:]
                yield from self._ask(error.value)
                cx.node = step.node

    def _without_run(
        self, scope: _Scope, step: Step, form: OpDef, args: Sequence[Item | None]
    ) -> list[Item | None] | None:
        """Results that are there before the tape runs: what a pure op makes of constants, or of small known values."""
        if not all(a is None or (isinstance(a, Value) and a.const) for a in args):
            return self._at_once(step, form, args)
        cx = self.context
        sources = [a for a in args if isinstance(a, Value)]
        made: list[Item | None] = cx.derived(step.node, sources, lambda: self._finish(step, form, args))
        values = [v for v in made if isinstance(v, Value)]
        for value in values:
            value.const = True
        if len(values) == sum(v is not None for v in made):
            scope.prepared.settle(step.node, made)
        return made

    def _at_once(self, step: Step, form: OpDef, args: Sequence[Item | None]) -> list[Item | None] | None:
        """Shape arithmetic that is not for the host, such as lengths as floats: small results of known values, computed
        by the kernels now, and known from then on."""
        evaluate = self._evaluate
        if evaluate is None:
            return None
        for item in args:
            if item is not None and not is_small_known(item):
                return None
        made = self.context.aside(lambda: self._finish(step, form, args))
        if not all(v is None or (isinstance(v, Value) and v.size <= MAX_AT_ONCE and v.dtype.bits >= 8) for v in made):
            return None
        known: list[Item | None] = []
        for value in made:
            if isinstance(value, Value) and value.known is None:
                array = evaluate(value)
                value = self.context.known(array)
            known.append(value)
        return known

    def _finish(self, step: Step, form: OpDef, args: Sequence[Item | None]) -> list[Item | None]:
        """The results of an op on constants; one that is a generator gets its answers at once."""
        result = self._once(step, form, args)
        if not form.generator:
            return listed(result)
        reply: Any = None
        while True:
            try:
                request = result.send(reply)
            except StopIteration as stop:
                return listed(stop.value)
            except MISTAKES as error:
                self._refuse(error, args)
            reply = self.context.read(self._asked(request))

    def _once(self, step: Step, form: OpDef, args: Sequence[Item | None]) -> Any:
        cx, bound = self.context, args
        if step.host:
            bound = list[Any](args)
            for i in step.host:
                if isinstance(bound[i], Value):
                    bound[i] = cx.read(bound[i])
        try:
            return form.function(cx, *bound, **cx.node.attributes)
        except MISTAKES as error:
            self._refuse(error, args)

    def _refuse(self, error: Exception, args: Sequence[Item | None]) -> NoReturn:
        """Raise what an op stumbled over with the node's name; what names it already as it is."""
        if isinstance(error, OnnxWasmError):
            raise error
        given = ", ".join(repr(a) for a in args if a is not None)
        kind = HeapMemoryError if isinstance(error, MemoryError) else ShapeError
        self.context.fail(f"{error} (inputs {given}; attributes {self.context.node.attributes})", kind)

    def _drive(self, scope: _Scope, steps: Generator[Any, Any, Any]) -> Asking:
        """Answer what an op that is a generator asks for."""
        cx, node = self.context, self.context.node
        reply: Any = None
        while True:
            cx.node = node
            try:
                request = steps.send(reply)
            except StopIteration as stop:
                return stop.value
            except MISTAKES as error:
                self._refuse(error, scope.args)
            if isinstance(request, Subgraph):
                self._check()
                if len(cx.records) > MAX_RECORDS:
                    cx.fail(f"more than {MAX_RECORDS:,} records to run", UnsupportedModelError)
                scope.keep = request.keep
                reply = yield from (self._inside if request.runs else self._outlined)(scope, request)
                cx.node = node
            else:
                value, keep = request if isinstance(request, tuple) else (request, ())
                scope.keep = [self._asked(value), *keep]
                reply = yield from self._read(value)

    def _inside(self, scope: _Scope, request: Subgraph) -> Generator[Value, Array, list[Item]]:
        """The outputs of a graph inside the node in hand."""
        cx, node, graph = self.context, self.context.node, request.graph
        if not cx.runs:
            if not self._outlines:
                raise _EndlessError
            self._outlines -= 1
        names = [i.name for i in graph.parameters]
        if len(names) != len(request.inputs):
            cx.fail(f"{graph.where} has {counted(len(names), 'input')}, and is given {len(request.inputs)}")
        if scope.checked:
            check_declared(cx, graph, "input", graph.parameters, request.inputs)
        inputs = dict(zip(names, request.inputs, strict=True))
        outputs = yield from self._graph(graph, inputs, tuple(o.name for o in graph.outputs))
        cx.node = node
        if scope.checked:
            check_declared(cx, graph, "output", graph.outputs, outputs)
        return outputs

    def _outlined(self, scope: _Scope, request: Subgraph) -> Generator[Value, Array, list[Item] | None]:
        """What a graph that does not run would give, with 0 for what only its run can tell; None, if it cannot run."""
        cx, depth, runs = self.context, len(self._scopes), self.context.runs
        mark, steps = len(cx.records), self._inside(scope, request)
        answer: Any = None
        self._outlines, cx.runs = _OUTLINED if runs else self._outlines, False
        try:
            while True:
                value = steps.send(answer)
                del cx.records[mark:]
                made = value.root.ready > mark
                answer = np.zeros(value.shape, value.dtype.numpy) if made else (yield value)
        except StopIteration as stop:
            return list(stop.value)
        except (*REFUSALS, _EndlessError):
            return None
        finally:
            steps.close()
            cx.runs = runs
            del self._scopes[depth:]
            del cx.records[mark:]

    def _asked(self, request: Any) -> Value:
        value = request[0] if isinstance(request, tuple) else request
        if not isinstance(value, Value):
            self.context.fail(f"a {type(value).__name__} where a tensor is needed")
        return value

    def _read(self, value: Value) -> Generator[Value, Array, Array]:
        try:
            return self.context.read(value)
        except NeedsValueError:
            return (yield from self._ask(value))

    def _ask(self, value: Value) -> Generator[Value, Array, Array]:
        """What a run tells about a value; by then all records so far have run, and nothing can be fused into them."""
        array = yield value
        self.context.observed[value] = array
        self.context.sealed = len(self.context.records)
        return array

    def _expand(
        self, scope: _Scope, node: Node, args: Sequence[Item | None]
    ) -> Generator[Value, Array, list[Item | None]]:
        """Lower the body of a function in the node's place."""
        graph = scope.prepared.graph
        body = body_of(node, graph, args, self._cache.bodies)
        if len(args) > len(body.inputs) or len(node.outputs) > len(body.outputs):
            self.context.fail(
                f"{counted(len(args), 'input')} and {counted(len(node.outputs), 'output')}; "
                f"function {body.name} has {len(body.inputs)} and "
                f"{len(body.outputs)}"
            )
        names = [i.name for i in body.inputs]
        inputs = {n: a for n, a in zip(names, args, strict=False) if a is not None}
        fetches = tuple(o.name for o, wanted in zip(body.outputs, node.outputs, strict=False) if wanted)
        made = iter((yield from self._graph(body, inputs, fetches, isolated=True)))
        self.context.node = node
        return [next(made) if wanted else None for wanted in node.outputs]

    def _bind(self, scope: _Scope, step: Step, results: Sequence[Item | None]) -> None:
        cx = self.context
        for i, name, count in step.outputs:
            item = results[i] if i < len(results) else None
            if item is None:
                missing = [n for i, n, _ in step.outputs if results[i : i + 1] in ([], [None])]
                cx.fail(f"outputs {missing} are not supported", UnsupportedModelError)
            if isinstance(item, Value):
                if item.name and not item.const:
                    item = cx.alias(item, item.shape)
                item.name = item.name or name
                item.uses = count
                # A constant is there before the tape runs.
                item.ready = 0 if item.const else len(cx.records)
            elif isinstance(item, TensorSequence):
                for element in item.elements:
                    settle(element)
            scope.items[name] = item

    def _trace(self, scope: _Scope, step: Step, args: Sequence[Item | None], since: int) -> None:
        """Note on its result what a node has computed; ``since`` records there were before."""
        item, first = scope.items.get(step.node.outputs[0]), args[0]
        if not isinstance(item, Value) or item.const or item.known is not None:
            return
        if step.node.op_type != "Identity":
            joined = [i for i, a in enumerate(args) if isinstance(a, Value) and item.shares(a)]
            item.computed_by = Origin(step.node, step.opset, args, since, joined)
        elif isinstance(first, Value) and first.uses == 1:
            item.computed_by = first.computed_by
