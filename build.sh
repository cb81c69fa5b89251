#!/usr/bin/env bash
# Render and assemble the WAT into host/onnx_wasm/_wasm/. Needs Python with jinja2 and wasmtime.
set -euo pipefail
cd "$(dirname "$0")"
exec "${PYTHON:-python3}" host/onnx_wasm/build.py
