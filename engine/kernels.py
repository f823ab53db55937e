"""Which kernels compute a loaded model: Metal's on an Apple GPU, C++ on a CPU, or stock MLX."""

from __future__ import annotations

import mlx.nn as nn

import metal


def install(model: nn.Module, asked: str) -> str:
    """Use kernels in `model`, bound to a target before; says what is used or why nothing is.

    asked: ``auto``, ``off`` or a CPU's instruction set. Raises RequestError where that is not to be
    had.
    """
    if metal.available():
        from engine.gpu.install import install as install_metal

        return install_metal(model, asked)
    from engine.cpu.install import install as install_cpu

    return install_cpu(model, asked)
