"""Random calls: the module answers as the brute-force model does, and every block keeps its bytes."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from dlmalloc_model import Policy
from wasm_harness import PAGE, WasmHeap

sizes = st.one_of(
    st.integers(0, 320),
    st.integers(240, 1100),
    st.integers(1, 40).map(lambda n: 64 * n),
    st.integers(1, 400_000),
    st.sampled_from([0x7FFFFFFF, 0xFFFF0000, 0xFFFFFFBF, 0xFFFFFFC0, 0xFFFFFFFF]),
)
alignments = st.sampled_from([1, 8, 16, 32, 64, 128, 4096, 65536])
pages = st.integers(1, 8)


class Both:
    """The module and the model, given the same calls."""

    def __init__(self, *, limit_known: bool = False, **options: float) -> None:
        self.wasm = WasmHeap(**options, limit_known=limit_known)
        self.model = Policy(**options)
        self.blocks: dict[int, tuple[int, bytes]] = {}

    def call(self, name: str, *args: int) -> int:
        answer = getattr(self.wasm, name)(*args)
        assert answer == getattr(self.model, name)(*args), (name, args)
        self.compare()
        return answer

    def compare(self) -> None:
        wasm, model = self.wasm, self.model
        assert (wasm.brk(), wasm.memory_size()) == (model.brk, model.memory)
        assert (wasm.top, wasm.top_size) == (model.top or 0, model.top_size)
        assert (wasm.dv, wasm.dv_size) == (model.dv or 0, model.dv_size)
        assert bool(wasm.noncontiguous) == model.noncontiguous

    def fill(self, p: int, n: int, alignment: int = 8) -> None:
        if not p:
            return
        assert p % alignment == 0
        usable = self.wasm.usable_size(p)
        assert usable >= n
        for q, (_, data) in self.blocks.items():
            assert p + usable <= q or q + len(data) <= p, "two blocks overlap"
        data = random.Random(p).randbytes(usable)
        self.wasm.write(p, data)
        self.blocks[p] = (n, data)

    def take(self, p: int) -> bytes:
        """The bytes of a block that is about to go: they are those written."""
        _, data = self.blocks.pop(p)
        assert self.wasm.read(p, len(data)) == data
        return data

    def realloc(self, p: int, n: int) -> int:
        data = self.blocks[p][1]
        q = self.call("realloc", p, n)
        if q:
            del self.blocks[p]
            kept = min(len(data), n)
            assert self.wasm.read(q, kept) == data[:kept]
            self.fill(q, n)
        return q


class HeapMachine(RuleBasedStateMachine):
    live = Bundle("live")

    @initialize(
        base=st.integers(512, 8000).map(lambda n: 8 * n),
        initial=pages,
        more=pages,
        below=st.integers(0, 4),
        step=st.sampled_from([0.0, 0.2, 0.5, 3.0]),
        cap=st.sampled_from([0, 4096, 96 << 20]),
        linear=st.sampled_from([-1, -1, 65536, 200_000]),
        limit_known=st.booleans(),
    )
    def begin(
        self, base: int, initial: int, more: int, below: int, step: float, cap: int, linear: int, limit_known: bool
    ) -> None:
        limit = (initial + more) * PAGE
        self.heap = Both(
            base=base,
            initial=initial * PAGE,
            engine_limit=limit,
            maximum=limit + (2 - below) * PAGE,
            step=step,
            cap=cap,
            linear=linear,
            limit_known=limit_known,
        )

    @rule(target=live, n=sizes)
    def malloc(self, n: int) -> object:
        return self.keep(self.heap.call("malloc", n), n)

    @rule(target=live, a=alignments, n=sizes)
    def memalign(self, a: int, n: int) -> object:
        return self.keep(self.heap.call("memalign", a, n), n, a)

    @rule(target=live, a=alignments, n=sizes)
    def aligned_new(self, a: int, n: int) -> object:
        return self.keep(self.heap.call("aligned_new", a, n), n, a)

    @rule(target=live, a=st.integers(0, 200), n=st.one_of(st.integers(0, 200), st.just(1 << 31)))
    def calloc(self, a: int, n: int) -> object:
        p = self.heap.call("calloc", a, n)
        if p:
            assert self.heap.wasm.read(p, a * n) == bytes(a * n)
        return self.keep(p, a * n)

    def keep(self, p: int, n: int, alignment: int = 8) -> object:
        self.heap.fill(p, n, alignment)
        return p if p else multiple()

    @rule(p=consumes(live))
    def free(self, p: int) -> None:
        self.heap.take(p)
        assert self.heap.wasm.free(p) == 0
        self.heap.model.free(p)
        self.heap.compare()

    @rule(target=live, p=consumes(live), n=sizes)
    def realloc(self, p: int, n: int) -> object:
        return self.heap.realloc(p, n) or p

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "heap"):
            return
        wasm, model = self.heap.wasm, self.heap.model
        assert wasm.heap_check() == 0
        used, free = model.used(), model.free_sizes()
        assert (wasm.used, wasm.blocks) == (sum(used), len(used))
        assert len(used) == len(self.heap.blocks)
        assert (wasm.walk_used, wasm.walk_used_chunks) == (sum(used), len(used))
        assert (wasm.walk_free, wasm.walk_free_chunks) == (sum(free), len(free))
        assert wasm.walk_largest_free == max(free, default=0)

    def teardown(self) -> None:
        if hasattr(self, "heap"):
            for p in list(self.heap.blocks):
                self.free(p)
            self.sound()
            self.heap.wasm.close()


HeapMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHeapMachine = HeapMachine.TestCase
