"""Which drafter a loaded target gets, and what is said when it gets none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_drafters import KINDS
from tiny_models import tiny

from engine.drafters.random_checkpoint import write_random_drafter
from engine.errors import ModelError
from engine.loading import pairs
from engine.loading.pairing import drafter_bits, load_pair
from engine.loading.pairs import drafter_folder, drafter_source
from engine.messages import EngineOptions
from engine.targets.target import bind
from engine.testing import fake_model


def pair(draft: str = "auto", model: str = "./mine"):
    target = bind(*tiny("qwen3"))
    options = EngineOptions(model=model, draft=draft)
    return target, load_pair(options, target, fake_model(), lambda what, share: None)


@pytest.fixture
def folder(tmp_path) -> Path:
    write_random_drafter(tmp_path / "mine-DFlash", KINDS["v1"] | {"num_target_layers": 2})
    return tmp_path / "mine-DFlash"


def test_a_drafter_asked_for_by_folder_taps_the_target(folder):
    target, found = pair(str(folder))
    assert found.model is not None
    assert (found.name, found.note) == ("mine-DFlash", "")
    assert target.tapped


@pytest.mark.parametrize("draft", ["copy", "none", "auto"])
def test_no_drafter_no_tap(draft):
    target, found = pair(draft)
    assert (found.model, found.note) == (None, "")
    assert not target.tapped


def test_a_drafter_that_was_asked_for_must_load(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json"):
        pair(str(folder))


def test_a_drafter_for_another_target_is_refused_by_key(tmp_path):
    write_random_drafter(tmp_path / "other", KINDS["v1"] | {"num_target_layers": 3})
    with pytest.raises(ModelError, match="num_target_layers: 3, but the target has 2"):
        pair(str(tmp_path / "other"))


def test_an_automatic_drafter_that_does_not_load_leaves_copying_and_a_note(folder, monkeypatch):
    monkeypatch.setattr(pairs, "SHIPPED", (folder / "absent", folder))
    target, found = pair(model="builtin")
    assert found.model is not None
    (folder / "model.safetensors").write_bytes(b"cut off")
    target, found = pair(model="builtin")
    assert found.model is None
    assert "copying only" in found.note
    assert "model.safetensors" in found.note
    assert not target.tapped


def test_a_family_whose_rows_cannot_be_taken_back_gets_none(folder):
    target = bind(*tiny("qwen3"))
    target.speculative = False
    options = EngineOptions(draft=str(folder))
    found = load_pair(options, target, fake_model(), lambda what, share: None)
    assert found.model is None
    assert not target.tapped


def test_sources(folder, monkeypatch):
    published = "z-lab/Qwen3.8-27B-DFlash2"
    assert drafter_source("auto", "mlx-community/Qwen3.8-27B-4bit") == published
    assert drafter_source("auto", "./local", "Qwen3.8-27B-4bit") == published
    assert drafter_source("auto", "smollm2-135m") is None
    assert drafter_source("some/drafter", "builtin") == "some/drafter"
    assert drafter_folder("auto", "mlx-community/Qwen3.8-27B-4bit") is None
    assert drafter_folder(str(folder), "builtin") == folder
    assert drafter_folder("./nowhere", "builtin") is None
    monkeypatch.setattr(pairs, "SHIPPED", (folder,))
    assert drafter_source("auto", "builtin") == str(folder)


def test_bits():
    assert drafter_bits(None, "4-bit, group 64") is None  # on a CPU quantised weights are slower
    assert drafter_bits(8, "bfloat16") == 8
    assert drafter_bits(0, "4-bit, group 64") is None
