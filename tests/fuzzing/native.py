"""Native onnxruntime in a process of its own: it crashes on some graphs, and runs on without end on others.

As a program this file is that process: it reads pickled (model, feeds) from standard input, and writes outputs or the
text of an error.
"""

from __future__ import annotations

import atexit
import pickle
import select
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]
SECONDS = 60
_worker: subprocess.Popen[bytes] | None = None


class NativeError(Exception):
    """What native onnxruntime says is wrong."""


class NativeCrash(Exception):
    """It died, or did not end."""


def native(data: bytes, feeds: Mapping[str, Any]) -> list[Any]:
    """All outputs by native onnxruntime, node for node, without its graph optimizations."""
    global _worker
    if _worker is None:
        _worker = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(_stop)
    assert _worker.stdin is not None
    assert _worker.stdout is not None
    try:
        _send(_worker.stdin, (data, {n: list(a) if isinstance(a, list) else a for n, a in feeds.items()}))
        ready, _, _ = select.select([_worker.stdout], [], [], SECONDS)
        if not ready:
            raise EOFError
        answer = _receive(_worker.stdout)
    except (EOFError, BrokenPipeError):
        _stop()
        raise NativeCrash from None
    if isinstance(answer, str):
        raise NativeError(answer)
    outputs: list[Any] = answer
    return outputs


def _stop() -> None:
    global _worker
    if _worker is not None:
        _worker.kill()
        _worker.communicate()
        _worker = None


def _send(stream: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: BinaryIO) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


def _serve() -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    while True:
        try:
            data, feeds = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            wanted = {i.name for i in session.get_inputs()}
            answer = session.run(None, {n: a for n, a in feeds.items() if n in wanted})
        except Exception as error:
            answer = str(error)
        _send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    _serve()
