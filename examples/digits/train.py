"""Train the digit classifier of this folder and write digits.onnx and digit.npy.

Needs more than the package does, in an environment of its own:

    pip install torch==2.13.0 scikit-learn onnx onnxruntime numpy

Then `python examples/digits/train.py`. The split, the seed, the number of epochs and the number of threads are fixed,
so a rerun on the same machine and the same versions gives the same bytes. No seed, epoch or weight is picked by its
result on the held-out part, which is only measured at the end.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).resolve().parent
SEED = 2024
EPOCHS = 60
BATCH = 64
OPSET = 17
IR_VERSION = 8
CHANNELS = (1, 16, 32, 64)
CLASSES = 10


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images as float32 [n, 1, 8, 8] in 0..1 and their labels: training part, then the held-out fifth."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.2, stratify=digits.target, random_state=SEED
    )
    return x_train, y_train, x_test, y_test


def network() -> nn.Sequential:
    """Three times Conv-BatchNorm-Relu, halved twice, then one dense layer."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(CHANNELS)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        if index > 0:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(CHANNELS[-1] * 4, CLASSES), nn.Softmax(dim=1))


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Each image moved by up to one pixel each way, so that a digit need not be centred."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    moves = torch.randint(0, 3, (len(images), 2)).tolist()
    return torch.stack([p[:, dy : dy + 8, dx : dx + 8] for p, (dy, dx) in zip(padded, moves, strict=True)])


def train(images: np.ndarray, labels: np.ndarray) -> nn.Sequential:
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    model = network()
    logits = model[:-1]
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.01, total_steps=steps)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(logits(shifted(x[chosen])), y[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def to_onnx(model: nn.Sequential) -> onnx.ModelProto:
    """The network as ONNX nodes, one for each layer."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "image"

    def weight(name: str, tensor: torch.Tensor) -> str:
        weights.append(numpy_helper.from_array(tensor.detach().numpy(), name))
        return name

    for index, layer in enumerate(model):
        kind = type(layer).__name__
        name = f"{kind.lower()}_{index}"
        result = "probabilities" if layer is model[-1] else name
        match layer:
            case nn.Conv2d():
                inputs = [value, weight(f"{name}.weight", layer.weight)]
                nodes.append(helper.make_node("Conv", inputs, [result], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
            case nn.BatchNorm2d():
                parts = {
                    "scale": layer.weight,
                    "bias": layer.bias,
                    "mean": layer.running_mean,
                    "var": layer.running_var,
                }
                inputs = [value, *(weight(f"{name}.{part}", tensor) for part, tensor in parts.items())]
                nodes.append(helper.make_node("BatchNormalization", inputs, [result], name, epsilon=layer.eps))
            case nn.ReLU():
                nodes.append(helper.make_node("Relu", [value], [result], name))
            case nn.MaxPool2d():
                nodes.append(helper.make_node("MaxPool", [value], [result], name, kernel_shape=[2, 2], strides=[2, 2]))
            case nn.Flatten():
                nodes.append(helper.make_node("Flatten", [value], [result], name, axis=1))
            case nn.Linear():
                inputs = [value, weight(f"{name}.weight", layer.weight), weight(f"{name}.bias", layer.bias)]
                nodes.append(helper.make_node("Gemm", inputs, [result], name, transB=1))
            case nn.Softmax():
                nodes.append(helper.make_node("Softmax", [value], [result], name, axis=1))
            case _:
                raise NotImplementedError(kind)
        value = result

    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])],
        weights,
    )
    proto = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="onnx-wasm examples/digits/train.py",
        doc_string="Recognises a handwritten digit of 8 x 8 pixels, 0..1.",
    )
    helper.set_model_props(proto, {"labels": ",".join(map(str, range(CLASSES)))})
    onnx.checker.check_model(proto, full_check=True)
    return proto


def main() -> None:
    x_train, y_train, x_test, y_test = data()
    model = train(x_train, y_train)
    with torch.no_grad():
        expected = model(torch.from_numpy(x_test)).numpy()
    right = int((expected.argmax(1) == y_test).sum())
    print(f"held-out accuracy: {right}/{len(y_test)} = {right / len(y_test):.2%}")
    assert right >= 0.98 * len(y_test)

    proto = to_onnx(model)
    path = HERE / "digits.onnx"
    onnx.save(proto, path)
    assert path.stat().st_size < 200_000
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (actual,) = session.run(["probabilities"], {"image": x_test})
    error = float(np.abs(actual - expected).max())
    print(f"digits.onnx: {path.stat().st_size:,} bytes; onnxruntime differs from torch by {error:.1e} at most")
    np.testing.assert_allclose(actual, expected, atol=1e-5)

    digit = x_test[:1]
    np.save(HERE / "digit.npy", digit)
    (probabilities,) = session.run(["probabilities"], {"image": digit})
    print(f"digit.npy: a {y_test[0]}, recognised as {probabilities.argmax()} ({probabilities.max():.1%})")
    assert probabilities.argmax() == y_test[0]


if __name__ == "__main__":
    main()
