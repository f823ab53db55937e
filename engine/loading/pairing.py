"""Which drafter a target gets, and getting it: asked for, shipped, or published for that target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from engine.builtin import DRAFTERS
from engine.drafters.dflash import DFlashModel
from engine.errors import ModelError
from engine.loading.drafter import load_drafter
from engine.loading.fetch import fetch
from engine.loading.pairs import drafter_for
from engine.loading.registry import BUILTIN
from engine.messages import EngineOptions, ModelInfo
from engine.targets.target import Target

Progress = Callable[[str, float | None], None]

# Values of `EngineOptions.draft` that name no drafter.
AUTO, COPY, NONE = "auto", "copy", "none"


@dataclass(frozen=True)
class Pair:
    """model: None when only copying is left. note: why, when a drafter was expected."""

    model: DFlashModel | None
    name: str = ""
    note: str = ""


def load_pair(options: EngineOptions, target: Target, info: ModelInfo, progress: Progress) -> Pair:
    """The drafter for a loaded target, and the target's taps set for it.

    `options.draft` names a folder or Hub id, or is ``auto``: the shipped drafter for the shipped
    model, else the one published for the model's name. A drafter that was asked for by name must
    load; an automatic one that does not leaves the copy drafter and a note, never a refusal.
    """
    if options.draft in (COPY, NONE) or not target.speculative:
        return Pair(None)
    asked = options.draft != AUTO
    source = options.draft if asked else automatic(options.model, info.id)
    if source is None:
        return Pair(None)
    try:
        model = _load(source, options, target, info, progress)
    except ModelError as error:
        if asked:
            raise
        return Pair(None, note=f"drafting by copying only, {source} did not load: {error.message}")
    return Pair(model, name=Path(source).name)


def automatic(model: str, model_id: str) -> str | None:
    """Where the drafter of a model comes from when none is asked for."""
    if model == BUILTIN:
        shipped = next((folder for folder in DRAFTERS if folder.is_dir()), None)
        return None if shipped is None else str(shipped)
    return drafter_for(model) or drafter_for(model_id)


def _load(
    source: str, options: EngineOptions, target: Target, info: ModelInfo, progress: Progress
) -> DFlashModel:
    path = fetch(source, None, progress)
    model = load_drafter(
        path,
        hidden_size=target.embed(mx.array([0])).shape[-1],
        vocab_size=info.vocab_size,
        num_layers=len(target.model.layers),
        bits=_bits(options, info),
        progress=progress,
    )
    target.tap(model.config.target_layer_ids)
    return model


def _bits(options: EngineOptions, info: ModelInfo) -> int | None:
    """Bits of the drafter's weights: as asked; else 4 beside a quantised target where quantised
    multiplication is fast, and the checkpoint's own precision elsewhere."""
    if options.draft_bits is not None:
        return options.draft_bits or None
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    return 4 if "bit" in info.quantization and not on_cpu else None
