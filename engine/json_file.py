"""The JSON files of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty when there is no such file. Raises ModelError naming it."""
    try:
        data = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path}: not a JSON object")
    return data
