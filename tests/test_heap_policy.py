"""Sizes as text, and policies of a heap."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from onnx_wasm.engine import PAGE
from onnx_wasm.env import MAXIMUM, ORT_WEB_HEAP_BASE
from onnx_wasm.heap import Runtime
from onnx_wasm.heap_policy import GIB, MIB, PRESETS, HeapPolicy, parse_bytes, preset


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (1 << 33, 1 << 33),
        ("0", 0),
        ("1_000_000", 1_000_000),
        ("16777216", 16 << 20),
        ("12 B", 12),
        ("64KiB", 65536),
        ("96 KiB", 98304),
        ("512MiB", 512 << 20),
        ("  512 mib ", 512 << 20),
        ("1.5 GiB", 3 << 29),
        (".5GiB", 1 << 29),
        ("0.1MiB", 104858),
        ("600MB", 600_000_000),
        ("2GB", 2_000_000_000),
        ("1.25KB", 1250),
    ],
)
def test_a_size(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "12 M", "512M", "-1", -1, "1.5", "1,000", "1e6", "0x10", "1.2.3MiB", "1 TiB", True, 1.5, None]
)
def test_what_is_no_size_is_told_what_one_is(text: Any) -> None:
    with pytest.raises(ValueError, match="is no size: a whole number of bytes, or a number with KiB, MiB, GiB"):
        parse_bytes(text)


def test_the_fields_are_those_of_a_runtime_with_its_defaults() -> None:
    parameters = inspect.signature(Runtime.__init__).parameters
    assert {f.name for f in dataclasses.fields(HeapPolicy)} <= parameters.keys()
    with Runtime() as runtime:
        assert runtime.policy == HeapPolicy(initial=16 << 20)
    with Runtime(policy="2GiB", geometric_step=0.5) as runtime:
        assert runtime.policy == HeapPolicy(initial=16 << 20, maximum=2 << 30, geometric_step=0.5)
        assert runtime.maximum == 2 << 30


def test_what_is_not_given_follows_from_the_limits() -> None:
    assert HeapPolicy().first == 16 * MIB
    assert HeapPolicy(maximum=8 * MIB).first == 8 * MIB
    assert HeapPolicy(memory_maximum=8 * MIB).first == 8 * MIB
    assert HeapPolicy(maximum=4 * GIB).limit == MAXIMUM
    assert HeapPolicy(maximum=GIB).engine_limit == GIB
    assert HeapPolicy(maximum=GIB, memory_maximum=4 * GIB).engine_limit == 4 * GIB
    assert HeapPolicy(initial=8 * MIB, maximum=8 * MIB + 1).pages == (128, 128)
    assert HeapPolicy().pages == (256, MAXIMUM // PAGE)


def test_changes_make_another_policy() -> None:
    policy = HeapPolicy()
    assert policy.with_(maximum=GIB, linear_step=MIB) == HeapPolicy(maximum=GIB, linear_step=MIB)
    assert policy == HeapPolicy()
    with pytest.raises(TypeError, match="limit"):
        policy.with_(limit=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maximum": (4 << 30) + 1}, "4294967297 is more than the 4 GiB"),
        ({"heap_base": 4097}, "heap_base 4097 must be a multiple of 8 and at least 4096"),
        ({"heap_base": 4088}, "heap_base 4088 must be"),
        ({"initial": ORT_WEB_HEAP_BASE}, "initial 6303872 must be at least heap_base"),
        ({"initial": 32 * MIB, "maximum": 16 * MIB}, "initial 33554432 must be .* at most maximum 16777216"),
        ({"maximum": MIB}, "maximum 1048576 must be at least heap_base"),
        ({"initial": 32 * MIB, "memory_maximum": 16 * MIB}, "memory_maximum 16777216 must be at least initial"),
        ({"memory_maximum": 1 << 33}, "memory_maximum 8589934592 must be"),
        ({"geometric_step": -0.1}, "geometric_step -0.1"),
        ({"geometric_step": float("nan")}, "geometric_step nan"),
        ({"geometric_cap": -1}, "geometric_cap -1"),
        ({"linear_step": -2}, "linear_step -2"),
    ],
)
def test_a_policy_that_no_heap_can_have(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeapPolicy(**changes).validate()
    with pytest.raises(ValueError, match=message):
        Runtime(**changes)


def test_a_size_that_is_no_whole_number() -> None:
    with pytest.raises(TypeError, match="'float' object"):
        HeapPolicy(maximum=1e9).validate()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_policy_that_a_runtime_takes_and_says_where_it_is_from(name: str) -> None:
    policy = preset(name)
    policy.validate()
    assert PRESETS[name].description
    assert PRESETS[name].source
    with Runtime(**policy.to_dict()) as runtime:
        assert runtime.memory().linear == 16 * MIB
        assert runtime.maximum == policy.limit


def test_the_presets() -> None:
    assert preset("onnxruntime-web") == HeapPolicy(16 * MIB, MAXIMUM, None, 6_303_872, 0.20, 96 * MIB, -1)
    limits = {name: (p.policy.limit, p.policy.engine_limit) for name, p in PRESETS.items()}
    assert limits == {
        "onnxruntime-web": (MAXIMUM, MAXIMUM),
        "4GiB": (MAXIMUM, MAXIMUM),
        "2GiB": (2 * GIB, 2 * GIB),
        "1GiB": (GIB, GIB),
        "ios-like": (MAXIMUM, GIB),
        "ios-like-512MiB": (MAXIMUM, 512 * MIB),
        "android-like": (MAXIMUM, 512 * MIB),
        "no-growth": (16 * MIB, 16 * MIB),
        "exact": (MAXIMUM, MAXIMUM),
        "linear-16MiB": (MAXIMUM, MAXIMUM),
    }
    assert preset("exact").geometric_step == 0
    assert preset("linear-16MiB").linear_step == 16 * MIB
    with pytest.raises(ValueError, match="no preset 'ios'; there are onnxruntime-web, 4GiB, 2GiB"):
        preset("ios")
