from __future__ import annotations

import pytest

from engine.loading.pairs import DRAFTERS, drafter_for


@pytest.mark.parametrize(
    ("model", "drafter"),
    [
        ("mlx-community/Qwen3.8-27B-4bit", "z-lab/Qwen3.8-27B-DFlash2"),
        ("Qwen/Qwen3.8-27B", "z-lab/Qwen3.8-27B-DFlash2"),
        ("Qwen3.8-27B-8bit", "z-lab/Qwen3.8-27B-DFlash2"),
        ("mlx-community/Qwen3.6-35B-A3B-4bit-DWQ", "z-lab/Qwen3.6-35B-A3B-DFlash"),
        ("mlx-community/Qwen3.6-27B-4bit", "z-lab/Qwen3.6-27B-DFlash"),
        ("mlx-community/Qwen3.5-4B-OptiQ-4bit", "z-lab/Qwen3.5-4B-DFlash"),
        ("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16"),
        ("mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash"),
        ("mlx-community/gemma-4-31b-it-4bit", "z-lab/gemma-4-31B-it-DFlash"),
        ("google/gemma-4-26B-A4B-it", "z-lab/gemma-4-26B-A4B-it-DFlash"),
        ("google/gemma4-12b-it", "z-lab/gemma4-12B-it-DFlash"),
        ("gemma_4_12B_it_qat", "z-lab/gemma4-12B-it-DFlash"),
        ("meta-models/Muse-Glimmer-30B", "z-lab/Muse-Glimmer-30B-DFlash2"),
        ("Muse-Glimmer-30B_4bit", "z-lab/Muse-Glimmer-30B-DFlash2"),
    ],
)
def test_published_pairs(model, drafter):
    assert drafter_for(model) == drafter


@pytest.mark.parametrize(
    "model",
    [
        "builtin",
        "smollm2-135m",
        "",
        "/",
        "Qwen/Qwen3.8-27",
        "Qwen/Qwen3.8-27B2",
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3.5-2B",
        "google/gemma-4-31b",
        "google/gemma-3-27b-it",
        "someone/My-Qwen3.8-27B",
    ],
)
def test_no_pair(model):
    assert drafter_for(model) is None


def test_the_longest_name_counts(monkeypatch):
    monkeypatch.setitem(DRAFTERS, "qwen3-4b-special", "other/drafter")
    assert drafter_for("Qwen3-4B-Special-4bit") == "other/drafter"
    assert drafter_for("Qwen3-4B-4bit") == "z-lab/Qwen3-4B-DFlash-b16"


def test_every_target_finds_its_own():
    for target, drafter in DRAFTERS.items():
        assert drafter_for(target) == drafter
        assert drafter_for(f"Somebody/{target.upper()}-4bit") == drafter
