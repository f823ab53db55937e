"""Which kernels compute a loaded model: Metal's on an Apple GPU, C++ on a CPU, or stock MLX."""

from __future__ import annotations

import mlx.nn as nn

import metal


def install(model: nn.Module, asked: str, widest: int | None = None) -> str:
    """Use kernels in `model`, bound to a target before; says what is used or why nothing is.

    asked: ``auto``, ``off`` or a CPU's instruction set. widest: most rows of a verify forward, if
    that is known. Raises RequestError where what is asked for is not to be had.
    """
    if metal.available():
        from engine.gpu.examine import Trials
        from engine.gpu.install import install as install_metal

        return install_metal(model, asked, trials=Trials().upto(widest))
    from engine.cpu.install import install as install_cpu

    return install_cpu(model, asked)


def bits(model: nn.Module, said: str) -> str:
    """What of the kernels in `model` shows in what it computes. said: what `install` did."""
    if metal.available():
        from engine.gpu.install import own_bits

        return own_bits(model)
    return said
