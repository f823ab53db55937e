from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import EngineOptions, ModelError, drafter_kind, known_drafters, random_drafter
from engine.loading import pairs
from engine.loading.load import load
from engine.loading.pairing import load_pair
from engine.targets.target import bind


def test_it_fits_its_target(tmp_path: Path) -> None:
    folder = random_drafter("builtin", tmp_path / "random")
    options = EngineOptions(draft=str(folder))
    loaded = load(options, lambda what, share: None)
    target = bind(loaded.model, loaded.config)
    pair = load_pair(options, target, loaded.info, lambda what, share: None)
    assert pair.model is not None
    assert pair.model.config.has_selector
    assert drafter_kind(str(folder), "builtin") == "dflash v2"


def test_a_target_that_does_not_say_its_sizes_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match=r"config\.json: hidden_size"):
        random_drafter(str(tmp_path), tmp_path / "random")


def test_every_shipped_drafter_is_known_the_better_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, missing, second = (tmp_path / name for name in ("one", "none", "two"))
    first.mkdir()
    second.mkdir()
    monkeypatch.setattr(pairs, "SHIPPED", (first, missing, second))
    assert known_drafters("builtin") == (str(first), str(second))
    assert known_drafters("org/Qwen3-4B-4bit") == ("z-lab/Qwen3-4B-DFlash-b16",)
    assert known_drafters("org/Unknown-4B") == ()


def test_the_kind_of_a_drafter_is_read_from_its_config(tmp_path: Path) -> None:
    folder = random_drafter("builtin", tmp_path / "random")
    raw = json.loads((folder / "config.json").read_text())
    raw["architectures"] = ["DFlashDraftModel"]
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        del raw["dflash_config"][key]
    (folder / "config.json").write_text(json.dumps(raw))
    assert drafter_kind(str(folder), "builtin") == "dflash v1"
    assert drafter_kind("copy", "builtin") == ""
