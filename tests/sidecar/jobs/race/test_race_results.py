from __future__ import annotations

import msgspec
import pytest
from race_results import TASKS, builtin_race, contenders, race, reply, results, round_of

from sidecar.jobs.race.doors import median_interval, overhead
from sidecar.jobs.race.race import Race
from sidecar.jobs.race.results import (
    PORTFOLIO,
    TARGET_ONLY,
    against,
    agree,
    best_llama,
    comparisons,
    decoding,
    figures,
    lost_rows,
    prefill,
    rows,
)
from sidecar.jobs.race.tasks import CHAT, REWRITE
from sidecar.jobs.race.verify_cost import cost_of


def test_figures_are_ratios_of_repeats_side_by_side() -> None:
    assert results().figures == pytest.approx(
        {
            "target_over_mlx_lm": 10.0,
            "prefill_over_mlx_lm": 12.5,
            "target_over_llamacpp": 0.8,
            "prefill_over_llamacpp": 0.5,
            "rewrite_portfolio_over_llamacpp_best": 0.8,
            "rewrite_portfolio_over_target_only": 2.0,
            "builtin_code_dflash_over_target_only": 2.5,
            "verify_t8_over_t1": 8.0,
            "verify_t4_over_t1": 4.0,
            "door_overhead_share": 0.02,
        },
        abs=1e-3,
    )


def test_a_slower_machine_in_one_repeat_does_not_widen_an_interval() -> None:
    found = comparisons(race(), builtin_race())["target_over_mlx_lm"]
    assert found is not None
    assert (found.ratio.low, found.ratio.high) == (10.0, 10.0)
    assert found.pairs == 4


def test_uneven_repeats_have_an_interval() -> None:
    over = Race(TASKS[:1], 11, deadline=1.0)
    over.runs["a", "rename"] = {0: reply(1.0, 1.0), 1: reply(1.0, 1.0), 2: reply(1.0, 1.0)}
    over.runs["b", "rename"] = {0: reply(1.9, 1.0), 1: reply(2.1, 1.0), 3: reply(9.0, 1.0)}
    found = against(over, "a", "b", "decoding", decoding)
    assert found is not None
    assert found.pairs == 2, "the rounds that both took part in"
    assert found.ratio.low < 1.9 < found.ratio.mean < 2.1 < found.ratio.high


def test_what_was_not_measured_is_no_number() -> None:
    empty = Race(TASKS, 11, deadline=1.0)
    assert set(figures(comparisons(empty, empty), None, ()).values()) == {None}
    assert best_llama(empty, REWRITE) is None


def test_cached_and_short_prompts_do_not_count_as_prefill() -> None:
    over = Race(TASKS[:1], 11, deadline=1.0)
    over.runs["a", "rename"] = {0: reply(1.0, 1.0), 1: reply(1.0, 0.001, cached=90)}
    over.runs["b", "rename"] = {0: reply(1.0, 2.0), 1: reply(1.0, 2.0)}
    found = against(over, "a", "b", "prefill", prefill)
    assert found is not None
    assert (found.ratio.mean, found.pairs) == (2.0, 1)


def test_the_best_drafts_are_those_of_the_regime() -> None:
    assert best_llama(race(), REWRITE) == "llama.cpp ngram_mod"


def test_rows_say_whether_output_is_the_serial_one() -> None:
    found = {(row.system, row.task): row for row in rows(race(), contenders())}
    assert found[PORTFOLIO, "rename"].exact is True
    assert found["llama.cpp ngram_simple", "rename"].exact is True
    assert found["llama.cpp ngram_mod", "rename"].exact is False
    assert found["llama.cpp", "rename"].exact is None
    assert found["llama.cpp", "rename"].same is False
    assert found["mlx_lm", "rename"].same is True
    row = found[TARGET_ONLY, "advice"]
    assert (row.decode, row.decode_repeats) == (7.5, (10.0, 5.0))
    assert (row.prompt, row.tokens, row.prompt_tokens) == (75.0, 11, 100)


def test_one_that_goes_on_behind_the_limit_agrees_up_to_there() -> None:
    truth = msgspec.structs.replace(reply(1.0, 1.0, "a"), text="def total(): pass")
    longer = msgspec.structs.replace(truth, output="b", tokens=12, text="def total(): passed")
    assert agree(longer, truth)
    assert not agree(msgspec.structs.replace(longer, text="def sum(): passed"), truth)
    assert not agree(msgspec.structs.replace(longer, tokens=10, text="def"), truth)
    assert not agree(msgspec.structs.replace(longer, text=""), truth)


def test_rows_that_we_lose_are_found() -> None:
    lost = {(one.theirs, one.what): one.ratio.mean for one in lost_rows(race(), contenders())}
    assert lost == pytest.approx(
        {
            ("llama.cpp ngram_mod", REWRITE): 0.8,
            ("llama.cpp ngram_mod", CHAT): 0.8,
            ("llama.cpp", "prefill"): 0.5,
            ("llama.cpp ngram_mod", "prefill"): 0.5,
            ("llama.cpp ngram_simple", "prefill"): 0.5,
        },
        abs=1e-3,
    )


def test_the_share_that_a_door_costs() -> None:
    found = overhead("HTTP", [100.0, 200.0], [90.0, 180.0])
    assert (found.share, found.low, found.high) == (0.1, 0.1, 0.1)
    assert overhead("HTTP", [100.0], [101.0]).share == -0.01


def test_pairs_that_something_disturbed_do_not_widen_a_median() -> None:
    inside = [100.0] * 40
    outside = [99.0, 98.0] * 18 + [20.0, 30.0, 400.0, 500.0]
    found = overhead("HTTP", inside, outside)
    assert 0.01 <= found.low <= found.share <= found.high <= 0.02
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)


def test_rounds_are_counted_by_their_rows() -> None:
    rounds = [round_of(1, s) for s in (0.01, 0.02, 0.03)]
    rounds += [round_of(8, s) for s in (0.05, 0.03, 0.04)]
    # A look takes time of its own, and two rounds of four rows are too few.
    rounds += [round_of(8, 9.0, looks=1)] * 9 + [round_of(4, 1.0)] * 2
    cost = cost_of(rounds)
    assert cost.rounds == {1: 3, 8: 3}
    assert cost.over_one(8) == 2.0
    assert cost.over_one(4) is None
