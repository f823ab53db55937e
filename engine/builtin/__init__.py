"""The model that ships with Pillion, so that the default needs no download (see MODEL_CARD.md)."""

from __future__ import annotations

from pathlib import Path

TARGET = Path(__file__).parent / "target"
