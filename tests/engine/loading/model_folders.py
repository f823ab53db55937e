"""Small model folders, and ways to damage them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from engine.builtin import TARGET


def builtin_copy(folder: Path) -> Path:
    """A copy of the built-in model that may be changed."""
    return Path(shutil.copytree(TARGET, folder))


def change_json(path: Path, **changes: Any) -> None:
    """Set top-level keys of a JSON file; None removes one."""
    data = json.loads(path.read_text()) if path.exists() else {}
    data = {key: value for key, value in (data | changes).items() if value is not None}
    path.write_text(json.dumps(data))


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The parsed header of a safetensors file, and what follows it."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_safetensors(path: Path, header: dict[str, Any], data: bytes) -> None:
    encoded = msgspec.json.encode(header)
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def shard(folder: Path) -> None:
    """Split model.safetensors in two, with an index, as large models are."""
    header, data = header_of(folder / "model.safetensors")
    header.pop("__metadata__", None)
    names = sorted(header, key=lambda name: header[name]["data_offsets"][0])
    weight_map = {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        first = header[part[0]]["data_offsets"][0]
        last = header[part[-1]]["data_offsets"][1]
        entries = {
            name: header[name]
            | {"data_offsets": [offset - first for offset in header[name]["data_offsets"]]}
            for name in part
        }
        write_safetensors(folder / file, entries, data[first:last])
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
