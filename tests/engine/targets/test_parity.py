"""Our drafters against the official package, and that the comparison sees a difference."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from engine.comparisons import ParityCase
from engine.drafters.dflash_config import DFlashConfig
from engine.json_file import read_json
from engine.targets.parity import _compared, _drafts, _loop, compare
from engine.targets.parity_cases import Case, generated, scripted


@pytest.mark.slow
def test_draft_tokens_and_accepted_lengths_are_the_official_ones(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PILLION_CACHE", str(tmp_path))
    cases: list[ParityCase] = []
    compare(200, cases.append)
    counted = [case for case in cases if case.counts]
    assert len(counted) == 22
    assert all(case.rounds == 200 for case in counted)
    assert [case for case in counted if case.token_differences] == []
    assert [case for case in counted if case.accepted_length_differences] == []
    assert all(case.accepted > 10 for case in counted if "loop" in case.name)


def test_the_cases_cover_what_configs_differ_in(tmp_path) -> None:
    cases = list(scripted(tmp_path, 3))
    files = [case.drafter / "config.json" for case in cases]
    read = [DFlashConfig.parse(read_json(file), file) for file in files]
    for version in (False, True):
        mine = [config for config in read if config.has_selector is version]
        kinds = {(frozenset(config.layer_types), config.is_causal) for config in mine}
        full, sliding = frozenset({"full_attention"}), frozenset({"sliding_attention"})
        assert {
            (layers, causal)
            for layers in (full, sliding, full | sliding)
            for causal in (None, True, False)
        } <= kinds
        for capped in (False, True):
            assert any(bool(config.softcap) is capped for config in mine)
    assert all(sum(case.order["rows"]) == case.inputs["hidden"].shape[0] for case in cases)
    windowed = [case for case in cases if "window 24" in case.name]
    assert {case.order["growing_caches"] for case in windowed} == {True, False}
    for case in windowed:
        assert case.order["growing_caches"] or min(case.order["rows"]) > 1


@pytest.mark.parametrize(
    "change",
    [
        {"is_causal": False},
        {"sliding_window": 30},
        {"dflash_config": {"input_embedding_scale": 1.0}},
        {"dflash_config": {"target_layer_ids": [4, 3, 1], "mask_token_id": 4}},
    ],
    ids=str,
)
def test_drafts_depend_on_what_the_cases_vary(tmp_path, change) -> None:
    """Otherwise equal drafts would say nothing."""
    case = next(c for c in scripted(tmp_path, 6) if "sliding, window 24, is_causal none" in c.name)
    before = _drafts(case)
    assert len({tuple(drafts) for drafts in before}) == 6
    file = case.drafter / "config.json"
    raw = read_json(file)
    inside = {"dflash_config": raw["dflash_config"] | change.get("dflash_config", {})}
    file.write_text(json.dumps(raw | change | inside))
    assert _compared(case, before, {"drafts": _drafts(case)}).token_differences > 0


def test_whole_loops_accept_now_and_then(tmp_path) -> None:
    for case in generated(tmp_path, 20):
        if "dense" in case.name:
            runs = _loop(case)
            assert len(runs) == 20
            assert any(len(run) > 1 for run in runs)


def test_differences_are_counted() -> None:
    drafted = Case("drafts", Path(), {}, {"hidden": mx.zeros((1, 1))})
    same = _compared(drafted, [[1, 2], [3, 4]], {"drafts": [[1, 2], [3, 4]]})
    assert (same.rounds, same.tokens, same.token_differences) == (2, 4, 0)
    assert _compared(drafted, [[1, 2], [3, 4]], {"drafts": [[1, 9], [4, 3]]}).token_differences == 3
    loop = Case("loop", Path(), {}, target=Path())
    result = _compared(loop, [[1, 2], [3]], {"runs": [[0], [1], [3], [5]]})
    assert (result.accepted, result.accepted_length_differences) == (1, 1)
    assert result.token_differences == 1
    with pytest.raises(ValueError, match="shorter"):
        _compared(loop, [[1], [2]], {"runs": [[0], [1]]})
