"""GOP/s of the 8-bit products and their ratio to f32, one record at a time: python bench/quant.py

Run it with PYTHONPATH=host. The least of several runs counts.
"""

from __future__ import annotations

import numpy as np
from kernels import prepare, seconds

from harness import Harness
from onnx_wasm.ops.matmul import matmul
from onnx_wasm.ops.qlinear import matmul_integer

SHAPES = [(256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (128, 384, 1536), (8, 512, 512), (1, 4096, 4096)]


def main() -> None:
    """Print a line a shape."""
    h = Harness(pages=16384)
    rng = np.random.default_rng(0)
    print(f"{'m n k':18} {'u8 x i8':>8} {'u8 x u8':>8} {'f32':>8}  ratio")
    for m, n, k in SHAPES:
        operations = 2e-9 * m * n * k
        a = rng.integers(0, 255, (m, k)).astype(np.uint8)
        b = rng.integers(-128, 127, (k, n)).astype(np.int8)
        zeros = [np.array(3, np.uint8), np.array(7, np.uint8)]
        signed = operations / seconds(prepare(h, matmul_integer, [a, b, zeros[0]]))
        unsigned = operations / seconds(prepare(h, matmul_integer, [a, b.view(np.uint8), *zeros]))
        wide = operations / seconds(prepare(h, matmul, [a.astype(np.float32), b.astype(np.float32)]))
        print(f"{f'{m} {n} {k}':18} {signed:8.1f} {unsigned:8.1f} {wide:8.1f}  {signed / wide:.2f}")


if __name__ == "__main__":
    main()
