"""hatchling hook: assemble the WAT for the wheel and for editable installs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WatBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        package = root / "host" / "onnx_wasm"
        spec = importlib.util.spec_from_file_location("onnx_wasm_build", package / "build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.build(root, package / "_wasm")
        build_data["artifacts"].append("host/onnx_wasm/_wasm/*")
