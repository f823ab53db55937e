"""The model that ships with Pillion, so that the default needs no download (see MODEL_CARD.md)."""

from __future__ import annotations

from pathlib import Path

TARGET = Path(__file__).parent / "target"

# The better one first; the first that is there is used.
DRAFTERS = (Path(__file__).parent / "dflash2", Path(__file__).parent / "dflash")
