"""The official DFlash package, fetched from PyPI on demand to compare with."""

from __future__ import annotations

from pathlib import Path

from engine.loading.wheel import unpacked_wheel

OFFICIAL = "dflash==0.1.0"
SHA256 = "b3fe38d9413efc30a952c8b38b34f1dcc696ba6d7b865acbf540a34cc53afaa2"


def official_dflash() -> Path:
    """The folder that holds `OFFICIAL`, for the module path of a process of its own.

    Without its dependencies, of which it pins other versions: it gets the same mlx and mlx-lm as
    Pillion, and only its MLX back end is used. Raises ModelError with pip's reason.
    """
    return unpacked_wheel(OFFICIAL, SHA256)
