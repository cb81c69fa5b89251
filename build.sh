#!/usr/bin/env bash
# Render and assemble the WAT into host/onnx_wasm/_wasm/, with $PYTHON or, without it, the first of .venv/bin/python
# and python3 that has jinja2 and wasmtime.
set -euo pipefail
cd "$(dirname "$0")"
if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); else candidates=(.venv/bin/python python3); fi
for python in "${candidates[@]}"; do
  if "$python" -c 'import jinja2, wasmtime' 2>/dev/null; then
    exec "$python" host/onnx_wasm/build.py
  fi
done
echo "build.sh: jinja2 and wasmtime are not both in: ${candidates[*]}. To get them:" \
  "python3 -m venv .venv && .venv/bin/pip install 'jinja2>=3.1' 'wasmtime>=49,<51'" >&2
exit 1
