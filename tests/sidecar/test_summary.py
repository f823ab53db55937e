"""What a status bar is told: the state that matters most, with its reason and what to do."""

import msgspec
import pytest

from engine.decoding.surplus_report import DrafterSurplus, RegimeSurplus
from engine.messages import EngineStatus, Exactness, Totals
from engine.testing import fake_model
from sidecar.summary import summarize

READY = EngineStatus(state="ready", model=fake_model(), drafters=("copy",))


def told(status, *, working=False):
    return summarize(status, requested_model="builtin", working=working)


def regime(*, rounds, drafters=(), target_only=None, saved=0.0):
    return RegimeSurplus(
        regime="code",
        rounds=rounds,
        tokens=rounds,
        seconds=1.0,
        tok_s=rounds,
        saved=saved,
        surplus_ms=0.0,
        widths={},
        looks=0,
        target_only=target_only or {},
        drafters=drafters,
    )


def with_(status, **changes):
    return msgspec.structs.replace(status, **changes)


def test_loading_names_the_model_before_it_is_there_and_how_far_it_is():
    summary = told(EngineStatus(state="loading", detail="reading weights", progress=0.256))
    assert (summary.state, summary.percent, summary.model) == ("loading", 26, "builtin")
    assert summary.message == "builtin: reading weights"


def test_a_model_that_never_loads_says_what_to_do():
    summary = told(EngineStatus(state="failed", detail="config.json: no such family"))
    assert (summary.state, summary.message) == ("error", "builtin: config.json: no such family")
    assert "pillion models" in summary.action


def test_an_engine_that_died_is_to_be_started_again():
    summary = told(with_(READY, state="failed", detail="out of memory"))
    assert summary.state == "error"
    assert "pillion serve" in summary.action


def test_an_engine_that_somebody_stopped_is_no_error():
    summary = told(with_(READY, state="stopped", detail="the engine was stopped"))
    assert (summary.state, summary.message) == ("stopped", "fake: the engine was stopped")
    assert "pillion serve" in summary.action


def test_busy_only_while_someone_waits():
    assert told(READY).state == "ready"
    assert told(READY, working=True).state == "busy"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"notes": ("no drafter is published for it",)}, "no drafter is published for it"),
        (
            {"exactness": Exactness(exact=False, width=1, asked=8, prefill=True, reason="row 3")},
            "row 3",
        ),
        ({}, "drafting is off"),
    ],
)
def test_without_drafters_it_says_why(changes, why):
    summary = told(with_(READY, drafters=(), **changes))
    assert summary.state == "target-only"
    assert why in summary.target_only
    assert why in summary.message


def test_drafting_that_never_paid_is_target_only_with_the_reason_that_took_longest():
    reasons = {"no gain": 2.0, "unpayable": 1.0}
    long = with_(READY, regimes=(regime(rounds=64, target_only=reasons),))
    assert told(long).target_only == "no gain"
    assert told(long, working=True).state == "busy"
    short = with_(READY, regimes=(regime(rounds=63, target_only=reasons),))
    assert told(short).state == "ready"
    drafter = DrafterSurplus(drafter="copy", rounds=1, tried=(1,), accepted=(1,))
    drafted = with_(READY, regimes=(regime(rounds=99, drafters=(drafter,)),))
    assert told(drafted).state == "ready"


def test_the_numbers_are_unknown_before_there_are_any():
    summary = told(READY)
    assert (summary.tok_s, summary.surplus_ms, summary.cache_hit_share) == (None, None, None)
    totals = Totals(prompt_tokens=200, cached_tokens=50, completion_tokens=90, decode_seconds=2.0)
    summary = told(with_(READY, totals=totals, regimes=(regime(rounds=100, saved=0.25),)))
    assert (summary.tok_s, summary.surplus_ms, summary.cache_hit_share) == (45.0, 2.5, 0.25)
