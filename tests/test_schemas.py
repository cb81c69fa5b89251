"""What is known of ONNX without importing all of the onnx package: messages, schemas, the elements of tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

import onnx_wasm as ort
from graphs import FLOAT, model, node
from onnx_wasm import disk_cache, dtypes, proto, schemas
from onnx_wasm.initializers import ExternalData, Initializer

NEWEST = defs.onnx_opset_version()
NAMES = sorted({s.name for s in defs.get_all_schemas_with_history() if not s.domain})


def expected(op_type: str, opset: int) -> schemas.Inputs | None:
    try:
        schema = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return None
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    constrained = {t.type_param_str for t in schema.type_constraints}
    parameters = []
    for p in schema.inputs:
        types = frozenset(t[len("optional(") : -1] if t.startswith("optional(") else t for t in p.types)
        one_type = p.type_str in constrained and (p.option != variadic or p.is_homogeneous)
        parameters.append(schemas.Parameter(p.name, types, p.type_str if one_type else ""))
    return schemas.Inputs(tuple(parameters), bool(parameters) and schema.inputs[-1].option == variadic)


@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_inputs_of_every_operator(opset: int) -> None:
    assert len(NAMES) > 190
    for name in NAMES:
        assert schemas.inputs_of(name, opset) == expected(name, opset), name


def test_what_there_is_not() -> None:
    assert schemas.newest_opset() == NEWEST
    assert schemas.newest_opsets() == {d: n for d, (_, n) in defs.C.schema_version_map().items()} | {"com.microsoft": 1}
    for opset in (NEWEST + 1, 0, -1, 1 << 40):
        assert schemas.inputs_of("Add", opset) is None
    assert schemas.inputs_of("Gelu", 19) is None
    assert schemas.inputs_of("NoSuchOperator", NEWEST) is None


SCRIPT = """
import sys
import numpy as np
import onnx_wasm as ort
with open(sys.argv[1], "rb") as file:
    data = file.read()
with ort.InferenceSession.create(data) as session:
    result = session.run({"x": np.float32([1, -2])})
    assert result["y"].get_data(True).tolist() == [3, 0]
loaded = [n for n in ("onnx", "ml_dtypes") if n in sys.modules]
from onnx_wasm import proto
mine = proto.ModelProto
import pickle
import onnx.onnx_cpp2py_export
assert onnx.ModelProto is mine is onnx.onnx_ml_pb2.ModelProto
assert onnx.onnx_cpp2py_export.defs.get_schema is onnx.defs.get_schema
made = mine.FromString(data)
onnx.shape_inference.infer_shapes(made)
assert pickle.loads(pickle.dumps(made)) == made
print(*loaded)
"""


def loaded(cache: Path | str, path: Path, **more: str) -> list[str]:
    """Which of the packages a process has imported when it has run a session."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(path)],
        env={**os.environ, "ONNX_WASM_CACHE": str(cache), **more},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    nodes = [node("Add", ["x", "two"], ["s"]), node("Relu", ["s"], ["y"])]
    path.write_bytes(model(nodes, {"x": (FLOAT, ["n"])}, ["y"], {"two": np.float32([2])}))
    return path


def test_a_session_needs_neither_onnx_nor_ml_dtypes(tmp_path: Path, file: Path) -> None:
    cache = tmp_path / "cache"
    assert loaded(cache, file) == ["onnx", "ml_dtypes"]
    assert loaded(cache, file) == []
    [kept] = cache.glob("schemas-*.bin")
    content = kept.read_bytes()
    for bad in (content[:-1], b""):
        kept.write_bytes(bad)
        assert loaded(cache, file) == ["onnx", "ml_dtypes"]
        assert kept.read_bytes() == content
    assert loaded(cache, file) == []
    assert loaded("", file) == ["onnx", "ml_dtypes"]


def test_with_protobuf_in_python(tmp_path: Path, file: Path) -> None:
    loaded(tmp_path, file)
    assert loaded(tmp_path, file, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python") == []


def test_another_version_of_onnx_is_asked_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    extension = folder / "onnx_cpp2py_export.so"
    extension.write_bytes(b"1")
    monkeypatch.setattr(proto, "folders", lambda: [str(folder)])
    first = schemas._name()
    assert first == schemas._name()
    extension.write_bytes(b"22")
    assert first != schemas._name()
    extension.unlink()
    assert schemas._name() is None


def test_what_is_kept_is_what_onnx_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_WASM_CACHE", str(tmp_path))
    kept = schemas._kept.__wrapped__()
    [file] = tmp_path.iterdir()
    data = disk_cache.load(file.stem)
    assert data is not None
    assert json.loads(data) == kept == schemas._kept.__wrapped__()
    assert len(data) < 1 << 18


def test_domains_that_a_model_does_not_import() -> None:
    """In ONNX Runtime they are of the newest opset."""
    nodes = [
        node("BiasGelu", ["x", "b"], ["g"], domain="com.microsoft"),
        node("Scaler", ["g"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0]),
    ]
    bias = np.arange(4, dtype=np.float32)
    data = model(nodes, {"x": (FLOAT, ["n", 4])}, ["y"], {"b": bias})
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    native = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    with ort.InferenceSession.create(data) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"].get_data(True), native, rtol=1e-6, atol=1e-6)
    unknown = model([node("Scaler", ["x"], ["y"], domain="elsewhere")], {"x": (FLOAT, ["n"])}, ["y"])
    with pytest.raises(ort.UnsupportedModelError, match=r"elsewhere::Scaler .*imports no opset of elsewhere"):
        ort.InferenceSession.create(unknown)


def test_a_model_that_was_optimised_for_one_processor() -> None:
    data = model([node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc")], {"x": (FLOAT, [1, 8, 4, 4])}, ["y"])
    with pytest.raises(ort.UnsupportedModelError, match=r"nchwc::Conv .*; .*: save it at optimisation level extended"):
        ort.InferenceSession.create(data)


def read(tensor: TensorProto) -> Any:
    return Initializer(tensor, ExternalData(None, {}), "test").array()


WHOLE = [d for d in dtypes.ALL if d.bits >= 8]


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 4), (7,)])
def test_elements_of_a_tensor(dtype: dtypes.DType, raw: bool, shape: tuple[int, ...]) -> None:
    assert dtype.numpy is not None
    size = int(np.prod(shape))
    values = np.random.default_rng(size).integers(-100, 100, size)
    array = np.abs(values).astype(dtype.numpy) if not dtype.is_signed else values.astype(dtype.numpy)
    if raw:
        tensor = helper.make_tensor("t", dtype.onnx, shape, array.tobytes(), raw=True)
    else:
        tensor = helper.make_tensor("t", dtype.onnx, shape, list(array))
    found, reference = read(tensor), numpy_helper.to_array(tensor)
    assert found.dtype == dtype.numpy
    assert found.shape == shape
    assert found.tobytes() == reference.tobytes() == array.tobytes()


def test_texts_of_a_tensor() -> None:
    tensor = helper.make_tensor("t", TensorProto.STRING, [2, 2], ["a", "", "ö€", "long enough to be long"])
    assert read(tensor).tolist() == [["a", ""], ["ö€", "long enough to be long"]]
    tensor.string_data[0] = b"\xff"
    with pytest.raises(ort.InvalidModelError, match=r"'t' \(string\[2, 2\]\) cannot be read"):
        read(tensor)


@pytest.mark.parametrize("dtype", [dtypes.BOOL, dtypes.U8, dtypes.I16, dtypes.F16, dtypes.BF16], ids=str)
def test_bits_beyond_the_type_are_cut_off(dtype: dtypes.DType) -> None:
    tensor = TensorProto(name="t", data_type=dtype.onnx, dims=[3], int32_data=[-1, 0x1234501, 0])
    assert read(tensor).tobytes() == numpy_helper.to_array(tensor).tobytes()


def test_a_tensor_without_its_elements() -> None:
    for tensor in (
        TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[3], float_data=[1, 2]),
        TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"12345"),
        TensorProto(name="t", data_type=TensorProto.INT64, dims=[3]),
        TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1], segment={"begin": 0, "end": 1}),
    ):
        with pytest.raises(ort.InvalidModelError, match=r"test: tensor 't' \(.*\) cannot be read"):
            read(tensor)


def test_every_kind_of_attribute() -> None:
    for value in (1.5, 7, "text", [1.5, 2.5], [1, 2], ["a", "b"], TensorProto(), [TensorProto()], onnx.TypeProto()):
        attribute = helper.make_attribute("a", value)
        found, reference = proto.attribute_value(attribute), helper.get_attribute_value(attribute)
        assert found == (tuple(reference) if isinstance(value, list) else reference)
    assert proto.attribute_value(onnx.AttributeProto(name="a")) is None


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_types_that_numpy_has_not(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name))
    found = dtypes.from_numpy(kind)
    assert found.numpy == kind
    assert found.name == name.replace("_", "")


def test_types_that_onnx_has_not() -> None:
    for kind in (ml_dtypes.float8_e3m4, np.longdouble, "datetime64[s]", "V3"):
        with pytest.raises(ValueError, match="has no ONNX tensor type"):
            dtypes.from_numpy(np.dtype(kind))
