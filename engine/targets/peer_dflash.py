"""z-lab's own DFlash (PyPI ``dflash``) on the same weights, for `engine.targets.baseline`.

It runs as it was published, in the baseline's process, where it may replace a method of mlx-lm's
class as it does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.errors import ModelError
from engine.loading.load import Loaded
from engine.loading.official_dflash import OFFICIAL, official_dflash
from engine.loading.pairing import drafter_bits
from engine.loading.pairs import drafter_folder
from engine.messages import EngineOptions


def official() -> Any:
    """Its MLX back end, downloaded if need be. Raises ModelError."""
    folder = str(official_dflash())
    if folder not in sys.path:
        # Last, so that nothing of it stands in for something of ours.
        sys.path.append(folder)
    try:
        module: Any = importlib.import_module("dflash.model_mlx")
    except ImportError as error:
        raise ModelError(f"{OFFICIAL} cannot be imported: {error}") from error
    # It only knows the Hub; ours are folders.
    module.snapshot_download = lambda folder, **_: folder
    return module


class OfficialDFlash:
    """Raises ModelError when there is no drafter, or the package cannot load it."""

    def __init__(self, loaded: Loaded, options: EngineOptions) -> None:
        folder = drafter_folder(options.draft, options.model)
        if folder is None:
            raise ModelError(f"{options.model}: there is no drafter {options.draft!r} here")
        self._module = official()
        self._model = loaded.model
        self._drafter = _drafter(self._module, folder)
        bits = drafter_bits(options.draft_bits, loaded.info.quantization)
        if bits is not None:
            # As its own --draft-bits does.
            nn.quantize(self._drafter, group_size=64, bits=bits)

    def generate(
        self, tokenizer: TokenizerWrapper, prompt: Sequence[int], max_tokens: int
    ) -> Iterator[list[int]]:
        """The run of each round; the first is the token of the prefill."""
        for response in self._module.stream_generate(
            self._model, self._drafter, tokenizer, list(prompt), max_tokens=max_tokens
        ):
            # The last one may only say that it is over.
            if response.tokens:
                yield response.tokens


def _drafter(module: Any, folder: Path) -> Any:
    try:
        return module.load_draft(str(folder))
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder}: {OFFICIAL} does not load it: {error!r}") from error
