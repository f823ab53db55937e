"""The official DFlash package, fetched from PyPI on demand to compare with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from engine.errors import EngineError
from engine.loading.registry import cache_dir

OFFICIAL = "dflash==0.1.0"


def official_dflash() -> Path:
    """The folder that holds `OFFICIAL`, for the PYTHONPATH of a process of its own.

    Without its dependencies: it gets the same mlx and mlx-lm as Pillion, and only its MLX back end
    is used. Raises EngineError with pip's reason.
    """
    folder = cache_dir() / "official" / OFFICIAL.replace("==", "-")
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(partial)]
    pip = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "install", *options, OFFICIAL],
        capture_output=True,
        text=True,
        check=False,
    )
    if pip.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        reason = pip.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise EngineError(f"pip could not install {OFFICIAL}: {reason[0]}")
    if folder.is_dir():
        # Somebody else was faster.
        shutil.rmtree(partial)
    else:
        partial.rename(folder)
    return folder
