"""The text format: https://prometheus.io/docs/instrumenting/exposition_formats/"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from reported_surplus import report

from engine import CacheEvictions, CacheHits, CacheStatus, Totals
from sidecar.prometheus import lines

NAME, LABEL = r"[a-z_]+", r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")


def scraped(**facts: object) -> dict[str, dict[str, float]]:
    """Metric to labels to value, with every rule of the format checked on the way."""
    found: dict[str, dict[str, float]] = {}
    said: dict[str, dict[str, str]] = {}
    for line in lines(report(**facts)):
        if comment := COMMENT.fullmatch(line):
            kind, name, rest = comment.groups()
            assert kind not in said.setdefault(name, {})
            assert name not in found, "HELP and TYPE come before the samples"
            said[name][kind] = rest
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, line
        name, labels, value = sample.groups()
        assert (labels or "") not in found.setdefault(name, {}), f"twice: {line}"
        found[name][labels or ""] = float(value)
    assert set(said) == set(found)
    for name, comments in said.items():
        assert set(comments) == {"HELP", "TYPE"}
        assert comments["HELP"].endswith(".")
        assert comments["TYPE"] == ("counter" if name.endswith("_total") else "gauge")
    return found


def test_every_line_is_of_the_format_and_every_metric_has_its_help() -> None:
    assert all(name.startswith("pillion_") for name in scraped())


def test_surplus_by_regime() -> None:
    found = scraped()
    assert found["pillion_surplus_seconds"] == {
        'regime="code"': 1.25,
        'regime="tool_call"': -0.01,
    }
    assert found["pillion_verify_rounds_total"]['regime="code",rows="5"'] == 20
    assert found["pillion_drafted_rounds_total"] == {'regime="code",drafter="copy"': 20}
    drafts = found["pillion_drafts_total"]
    where = 'regime="code",drafter="copy"'
    assert drafts[f'{where},position="1",outcome="accepted"'] == 16
    assert drafts[f'{where},position="2",outcome="rejected"'] == 8
    reasons = found["pillion_target_only_seconds_total"]
    assert reasons['regime="code",reason="said \\"no\\"\\n"'] == 0.5


def test_costs_and_the_machine() -> None:
    found = scraped()
    assert found["pillion_forward_seconds"]['context="1024",rows="6"'] == 0.09
    assert found["pillion_proposal_seconds"]['drafter="dflash",context="64",drafts="2"'] == 0.006
    assert found["pillion_slowdown_ratio"] == {"": 1.3}
    assert {"pillion_forward_seconds", "pillion_proposal_seconds"}.isdisjoint(scraped(costs=None))


@pytest.mark.parametrize(("state", "ready"), [("loading", 0), ("ready", 1), ("failed", 0)])
def test_ready(state: str, ready: int) -> None:
    assert scraped(state=state)["pillion_ready"] == {"": ready}


def test_requests_by_outcome() -> None:
    totals = Totals(requests=10, cancelled=2, failed=3, prompt_tokens=90, cached_tokens=50)
    found = scraped(totals=totals)
    assert found["pillion_requests_total"] == {
        'outcome="cancelled"': 2,
        'outcome="failed"': 3,
        'outcome="finished"': 5,
    }
    assert found["pillion_prompt_tokens_total"] == {'source="computed"': 40, 'source="cached"': 50}


def test_the_folders_that_clients_work_in() -> None:
    folder = {"mode": "watch", "files": 7, "directories": 2, "changes": 3, "last_change": 5.5}
    polled = folder | {"mode": "poll", "last_change": None}
    found = scraped(workspace=[folder, polled])
    assert found["pillion_workspace_files"] == {"": 14}
    assert found["pillion_workspace_directories"] == {"": 4}
    assert found["pillion_workspace_changes"] == {"": 6}
    assert found["pillion_workspace_last_change_timestamp_seconds"] == {"": 5.5}
    assert found["pillion_workspace_folders"]['mode="poll"'] == 1
    assert found["pillion_workspace_folders"]['mode="missing"'] == 0


def test_the_prefix_cache_by_tier_and_kind() -> None:
    cache = CacheStatus(
        memory_bytes=3,
        disk_bytes=5,
        nodes=7,
        hits=(CacheHits(tier="disk", kind="restart", tokens=120),),
        evictions=(CacheEvictions(tier="disk", reason="damaged", count=2),),
        saved_seconds=1.5,
    )
    found = scraped(cache=cache)
    assert found["pillion_prefix_cache_bytes"] == {'tier="memory"': 3, 'tier="disk"': 5}
    assert found["pillion_prefix_cache_hit_tokens_total"] == {'tier="disk",kind="restart"': 120}
    assert found["pillion_prefix_cache_evictions_total"] == {'tier="disk",reason="damaged"': 2}
    assert found["pillion_prefix_cache_saved_seconds_total"] == {"": 1.5}
