"""Which published drafter belongs to which target."""

from __future__ import annotations

import re
from pathlib import Path

from engine.builtin import DRAFTERS as SHIPPED
from engine.drafters.dflash_config import DFlashConfig
from engine.errors import PillionError
from engine.json_file import read_json
from engine.loading.fetch import hub_folder
from engine.loading.registry import BUILTIN, resolve

# Values of `EngineOptions.draft` that name no drafter.
AUTO, COPY, NONE = "auto", "copy", "none"

DRAFTERS = {
    "gemma-4-12b-it": "z-lab/gemma4-12B-it-DFlash",
    "gemma-4-26b-a4b-it": "z-lab/gemma-4-26B-A4B-it-DFlash",
    "gemma-4-31b-it": "z-lab/gemma-4-31B-it-DFlash",
    "muse-glimmer-30b": "z-lab/Muse-Glimmer-30B-DFlash2",
    "qwen3-4b": "z-lab/Qwen3-4B-DFlash-b16",
    "qwen3-8b": "z-lab/Qwen3-8B-DFlash-b16",
    "qwen3-coder-30b-a3b": "z-lab/Qwen3-Coder-30B-A3B-DFlash",
    "qwen3-coder-next": "z-lab/Qwen3-Coder-Next-DFlash",
    "qwen3.5-4b": "z-lab/Qwen3.5-4B-DFlash",
    "qwen3.5-9b": "z-lab/Qwen3.5-9B-DFlash",
    "qwen3.5-27b": "z-lab/Qwen3.5-27B-DFlash",
    "qwen3.5-35b-a3b": "z-lab/Qwen3.5-35B-A3B-DFlash",
    "qwen3.5-122b-a10b": "z-lab/Qwen3.5-122B-A10B-DFlash",
    "qwen3.6-27b": "z-lab/Qwen3.6-27B-DFlash",
    "qwen3.6-35b-a3b": "z-lab/Qwen3.6-35B-A3B-DFlash",
    "qwen3.8-27b": "z-lab/Qwen3.8-27B-DFlash2",
}
"""Target, in lower case, to the Hub id of its drafter (huggingface.co/collections/z-lab)."""


def drafter_for(model: str) -> str | None:
    """The Hub id of the drafter published for a target, or None.

    model: a Hub id or the name of a folder. What stands behind a known target's name and a dash,
    such as a quantisation, does not matter, and the longest known name counts. A fine-tuned
    target gets its original's drafter: that may guess worse, never wrongly.
    """
    name = model.rpartition("/")[2].lower().replace("_", "-")
    name = re.sub(r"^gemma(?=\d)", "gemma-", name)
    known = [target for target in DRAFTERS if name == target or name.startswith(f"{target}-")]
    return DRAFTERS[max(known, key=len)] if known else None


def known_drafters(model: str, model_id: str = "") -> tuple[str, ...]:
    """The names, as `fetch` takes them, of the drafters shipped or published for a model, the best
    one first. model: what was asked to be served; model_id: its id."""
    if model == BUILTIN:
        return tuple(str(folder) for folder in SHIPPED if folder.is_dir())
    published = drafter_for(model) or drafter_for(model_id)
    return () if published is None else (published,)


def drafter_source(draft: str, model: str, model_id: str = "") -> str | None:
    """The name of the drafter that a model gets; None for copying alone.

    draft: `EngineOptions.draft`. model, model_id: see `known_drafters`.
    """
    if draft in (COPY, NONE):
        return None
    return next(iter(known_drafters(model, model_id)), None) if draft == AUTO else draft


def drafter_folder(draft: str, model: str) -> Path | None:
    """Where that drafter is, if it is on this machine already; touches no network."""
    name = drafter_source(draft, model)
    if name is None:
        return None
    try:
        source = resolve(name)
    except PillionError:
        return None
    return hub_folder(name) if source.kind == "hub" else source.path


def drafter_kind(draft: str, model: str) -> str:
    """``dflash v1`` or ``dflash v2``; empty where there is no drafter on this machine."""
    folder = drafter_folder(draft, model)
    if folder is None:
        return ""
    file = folder / "config.json"
    return "dflash v2" if DFlashConfig.parse(read_json(file), file).has_selector else "dflash v1"
