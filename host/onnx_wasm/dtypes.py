"""The element types of ONNX tensors: their names here, in ONNX, in numpy and in kernel names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from .proto import TensorProto


@dataclass(frozen=True, eq=False)
class DType:
    """One element type: there is one object for each, found with `from_name` and its kin."""

    name: str
    """ORT Web's name, e.g. "float32"."""
    short: str
    """The part of a kernel's name, e.g. "f32"."""
    onnx: int
    """The value of onnx.TensorProto.DataType."""
    scalar: type | str | None
    """numpy's class of an element, or of a byte that packs several, or the name of one in ml_dtypes."""
    bits: int
    """Bits of an element in the heap; below 8, elements are packed, the first in the low bits."""

    def nbytes(self, elements: int) -> int:
        """Bytes of a dense tensor of that many elements."""
        return (elements * self.bits + 7) // 8

    @property
    def itemsize(self) -> int:
        """Bytes of an element; only for types of whole bytes."""
        assert self.bits >= 8, self.name
        return self.bits // 8

    @cached_property
    def numpy(self) -> np.dtype[np.generic] | None:
        """The numpy type of an element, or of a byte that packs several; None for strings."""
        scalar = self.scalar
        if isinstance(scalar, str):
            # Importing it takes longer than making a session, with some versions a second.
            import ml_dtypes

            scalar = getattr(ml_dtypes, scalar, np.uint8)
        return None if scalar is None else np.dtype(scalar)

    @cached_property
    def is_float(self) -> bool:
        return self.short[0] in "fb" and self.short != "bool"

    @cached_property
    def is_integer(self) -> bool:
        return self.short[0] in "iu"

    @cached_property
    def is_signed(self) -> bool:
        return self.short[0] != "u" and self.short != "bool"

    def __str__(self) -> str:
        return self.name


def _dtype(name: str, short: str, onnx_name: str, scalar: type | str | None, bits: int) -> DType | None:
    # A type that the installed onnx does not know yet has no number and cannot occur.
    number = getattr(TensorProto, onnx_name, None)
    if number is None:
        return None
    return DType(name, short, int(number), scalar, bits)


_TABLE = [
    _dtype("float32", "f32", "FLOAT", np.float32, 32),
    _dtype("uint8", "u8", "UINT8", np.uint8, 8),
    _dtype("int8", "i8", "INT8", np.int8, 8),
    _dtype("uint16", "u16", "UINT16", np.uint16, 16),
    _dtype("int16", "i16", "INT16", np.int16, 16),
    _dtype("int32", "i32", "INT32", np.int32, 32),
    _dtype("int64", "i64", "INT64", np.int64, 64),
    _dtype("string", "str", "STRING", None, 0),
    _dtype("bool", "bool", "BOOL", np.bool_, 8),
    _dtype("float16", "f16", "FLOAT16", np.float16, 16),
    _dtype("float64", "f64", "DOUBLE", np.float64, 64),
    _dtype("uint32", "u32", "UINT32", np.uint32, 32),
    _dtype("uint64", "u64", "UINT64", np.uint64, 64),
    _dtype("complex64", "c64", "COMPLEX64", np.complex64, 64),
    _dtype("complex128", "c128", "COMPLEX128", np.complex128, 128),
    _dtype("bfloat16", "bf16", "BFLOAT16", "bfloat16", 16),
    _dtype("float8e4m3fn", "f8e4m3fn", "FLOAT8E4M3FN", "float8_e4m3fn", 8),
    _dtype("float8e4m3fnuz", "f8e4m3fnuz", "FLOAT8E4M3FNUZ", "float8_e4m3fnuz", 8),
    _dtype("float8e5m2", "f8e5m2", "FLOAT8E5M2", "float8_e5m2", 8),
    _dtype("float8e5m2fnuz", "f8e5m2fnuz", "FLOAT8E5M2FNUZ", "float8_e5m2fnuz", 8),
    _dtype("uint4", "u4", "UINT4", np.uint8, 4),
    _dtype("int4", "i4", "INT4", np.uint8, 4),
    _dtype("float4e2m1", "f4e2m1", "FLOAT4E2M1", np.uint8, 4),
    _dtype("float8e8m0", "f8e8m0", "FLOAT8E8M0", "float8_e8m0fnu", 8),
    _dtype("uint2", "u2", "UINT2", np.uint8, 2),
    _dtype("int2", "i2", "INT2", np.uint8, 2),
    _dtype("float6e2m3", "f6e2m3", "FLOAT6E2M3", np.uint8, 6),
    _dtype("float6e3m2", "f6e3m2", "FLOAT6E3M2", np.uint8, 6),
]
ALL: tuple[DType, ...] = tuple(d for d in _TABLE if d is not None)
_BY_NAME = {d.name: d for d in ALL}
_BY_ONNX = {d.onnx: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL if isinstance(d.scalar, type) and d.bits >= 8}

F32, F64, F16, BF16 = (_BY_NAME[n] for n in ("float32", "float64", "float16", "bfloat16"))
I8, I16, I32, I64 = (_BY_NAME[n] for n in ("int8", "int16", "int32", "int64"))
U8, U16, U32, U64 = (_BY_NAME[n] for n in ("uint8", "uint16", "uint32", "uint64"))
C64, C128 = _BY_NAME["complex64"], _BY_NAME["complex128"]
BOOL, STRING = _BY_NAME["bool"], _BY_NAME["string"]


def from_name(name: str) -> DType:
    """The type with ORT Web's name `name`. Raises ValueError with the known names."""
    found = _BY_NAME.get(name)
    if found is None:
        raise ValueError(f"unknown tensor type {name!r}; known: {', '.join(_BY_NAME)}")
    return found


def from_onnx(number: int) -> DType:
    """The type with ONNX's number. Raises ValueError."""
    found = _BY_ONNX.get(number)
    if found is None:
        raise ValueError(f"unknown ONNX element type {number}")
    return found


def from_numpy(dtype: np.dtype[np.generic]) -> DType:
    """The type of a numpy array's elements, in any byte order. Raises ValueError."""
    found = _BY_NUMPY.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "OUST":
        return STRING
    found = _BY_NUMPY.get(dtype.newbyteorder("=")) or _by_extension().get(dtype)
    if found is None:
        raise ValueError(f"numpy type {dtype} has no ONNX tensor type")
    return found


@cache
def _by_extension() -> dict[np.dtype[np.generic] | None, DType]:
    return {d.numpy: d for d in ALL if isinstance(d.scalar, str) and d.numpy is not None and d.numpy != np.uint8}
