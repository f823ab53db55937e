"""Builds the kernels when Pillion is installed or packaged, where that can be done.

Without a compiler, or where the build fails, Pillion is installed all the same and uses stock MLX.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _build_module() -> ModuleType:
    """build.py, without importing the package that is being built."""
    spec = importlib.util.spec_from_file_location("build", Path(__file__).with_name("build.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class KernelsHook(BuildHookInterface[Any]):
    """Adds the compiled kernels to a wheel, or leaves them in the tree of an editable install."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build environment needs: nothing where no kernels will be built."""
        kernels = _build_module()
        try:
            kernels.compiler()
        except kernels.BuildError:
            return []
        return [] if kernels.is_built() else list(kernels.REQUIREMENTS)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the files of the wheel are collected; build_data is hatchling's."""
        kernels = _build_module()
        if not kernels.is_built():
            self.app.display_info("building the CPU kernels, which takes about half a minute")
            try:
                kernels.build()
            except kernels.BuildError as error:
                self.app.display_warning(f"no CPU kernels: {error}")
                return
        build_data["artifacts"].append(f"engine/cpu/{kernels.MODULE.name}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
