"""The card says what was measured, and what it describes is what is shipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.builtin import DRAFTERS, TARGET
from engine.builtin.train.card import SCORES, checksums, render

FOLDER = TARGET.parent
CARD = json.loads((FOLDER / "model_card.json").read_text("utf-8"))


def test_the_card_is_made_of_the_figures() -> None:
    assert (FOLDER / "MODEL_CARD.md").read_text("utf-8") == render(CARD)


def test_every_shipped_file_has_its_checksum() -> None:
    assert (FOLDER / "SHA256SUMS").read_text("utf-8") == checksums(FOLDER)


def test_the_pair_fits_its_budget() -> None:
    folders = [TARGET, *DRAFTERS]
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) <= 20e6


@pytest.mark.parametrize("column", ["built-in", "bootstrap"])
def test_the_figures_are_all_there(column: str) -> None:
    measured = CARD["measured"][column]
    for texts in ("held_out_packages", "held_out_stdlib"):
        assert 0 < measured[texts]["nats_a_token"] < 6
        assert 0 < measured[texts]["next_token_right"] < 1
    assert set(measured["scores"]) == set(SCORES)
    for counts in measured["tokens_a_round"].values():
        for sampling in ("greedy", "t07", "t10"):
            assert counts[sampling]["all"] >= 1.0


def test_both_drafters_are_measured() -> None:
    names = {folder.name for folder in DRAFTERS}
    assert names | {"copy", "itself"} == set(CARD["measured"]["built-in"]["tokens_a_round"])


def test_the_new_pair_is_better_than_the_bootstrap() -> None:
    new, old = CARD["measured"]["built-in"], CARD["measured"]["bootstrap"]
    for score in ("tool_and_arguments", "rename"):
        shares = [report["scores"][score] for report in (new, old)]
        assert shares[0]["right"] / shares[0]["of"] > shares[1]["right"] / shares[1]["of"]


def test_a_target_that_drafts_for_itself_is_always_right() -> None:
    counts = CARD["measured"]["built-in"]["tokens_a_round"]["itself"]["t07"]
    assert counts["code"] > 7.0
    assert counts["own_noise_code"] < 0.5 * counts["code"]


def test_half_of_the_renames_of_short_functions_are_exact() -> None:
    score = CARD["measured"]["built-in"]["scores"]["rename_short"]
    assert 2 * score["right"] >= score["of"]


def test_licences_are_listed() -> None:
    from engine.builtin.train.corpus import PACKAGES

    listed = Path(FOLDER / "train" / "LICENCES.md").read_text("utf-8")
    for requirement in PACKAGES:
        assert f"| {requirement.replace('==', ' ')} | " in listed
