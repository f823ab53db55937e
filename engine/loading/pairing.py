"""Which drafter a target gets, and getting it: asked for, shipped, or published for that target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from engine.drafters.dflash import DFlashModel
from engine.errors import ModelError
from engine.loading.drafter import load_drafter
from engine.loading.fetch import fetch
from engine.loading.pairs import AUTO, COPY, NONE, drafter_source
from engine.messages import EngineOptions, ModelInfo
from engine.targets.target import Target

Progress = Callable[[str, float | None], None]


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
    source = drafter_source(options.draft, options.model, info.id)
    if source is None:
        return Pair(None)
    try:
        model = _load(source, options, target, info, progress)
    except ModelError as error:
        if asked:
            raise
        return Pair(None, note=f"drafting by copying only, {source} did not load: {error.message}")
    return Pair(model, name=Path(source).name)


def _load(
    source: str, options: EngineOptions, target: Target, info: ModelInfo, progress: Progress
) -> DFlashModel:
    path = fetch(source, None, progress)
    model = load_drafter(
        path,
        hidden_size=target.embed(mx.array([0])).shape[-1],
        vocab_size=info.vocab_size,
        num_layers=len(target.model.layers),
        bits=drafter_bits(options.draft_bits, info.quantization),
        progress=progress,
    )
    target.tap(model.config.target_layer_ids)
    return model


def drafter_bits(draft_bits: int | None, quantization: str) -> int | None:
    """Bits of the drafter's weights: as asked; else 4 beside a quantised target where quantised
    multiplication is fast, and the checkpoint's own precision elsewhere."""
    if draft_bits is not None:
        return draft_bits or None
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    return 4 if "-bit" in quantization and not on_cpu else None
