from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from engine import EngineClient, Finished, GenerateRequest, Span
from engine.testing import FakeEngine
from engine.text.grammar_check import problem
from sidecar.jobs.coding_prompts import MIXED, mixed
from sidecar.jobs.surplus_benchmark import (
    AGENT,
    AGENT_TOKENS,
    ALWAYS,
    NEVER,
    SURPLUS,
    TASKS,
    VARIANTS,
    Ratio,
    SurplusBenchmark,
    SurplusRow,
    ratio,
    surplus_live_figures,
)
from sidecar.jobs.timeline_picture import timeline_svg

SPANS = (
    Span(regime="prose", drafter="", width=1, rounds=3, tokens=3, seconds=0.3),
    Span(regime="code", drafter="dflash", width=8, rounds=4, tokens=20, seconds=0.4),
    Span(regime="code", drafter="copy", width=5, rounds=1, tokens=5, seconds=0.1),
    Span(regime="tool_call", drafter="<odd>", width=2, rounds=2, tokens=3, seconds=0.2),
)


def system_of(request: GenerateRequest) -> str:
    if not request.draft:
        return NEVER
    return ALWAYS if request.policy == "always" else SURPLUS


def facts(request: GenerateRequest) -> dict[str, object]:
    """Four tokens in 400 ms target-only, in 200 ms always drafted, in 100 ms by surplus."""
    milliseconds = {NEVER: 400.0, ALWAYS: 200.0, SURPLUS: 100.0}[system_of(request)]
    return {"decode_ms": milliseconds, "timeline": SPANS if request.explain else ()}


async def measured(engine: FakeEngine, repeat: int = 2) -> tuple[list[SurplusRow], list[Finished]]:
    client = EngineClient(engine)
    client.start()
    await client.ready()
    try:
        benchmark, steps = SurplusBenchmark(client, max_tokens=9), []
        rows = await benchmark.measure(repeat, lambda: steps.append(1))
        assert len(steps) == benchmark.steps(repeat)
    finally:
        await client.stop()
    return rows, benchmark.mixed


async def test_every_task_three_ways_in_turn() -> None:
    engine = FakeEngine("four", facts=facts)
    rows, replies = await measured(engine)
    assert [row.task for row in rows] == list(TASKS)
    for row in rows:
        assert row.tok_s == {NEVER: 10.0, ALWAYS: 20.0, SURPLUS: 40.0}
        assert row.vs_never == Ratio(mean=4.0, low=4.0, high=4.0)
        assert row.vs_always == Ratio(mean=2.0, low=2.0, high=2.0)
        assert row.exact
    figures = surplus_live_figures(rows)
    assert figures.live_worst_vs_target_only == figures.live_mixed_vs_never_draft == 4.0
    assert figures.live_mixed_vs_always_draft == 2.0
    # Who begins changes from repeat to repeat.
    each = len(engine.seen) // 3
    assert {system_of(engine.seen[n * each]) for n in range(3)} == {NEVER, ALWAYS, SURPLUS}
    assert [reply.timeline for reply in replies] == [SPANS] * len(MIXED)


async def test_a_reply_that_drafting_changed_is_reported() -> None:
    engine = FakeEngine(lambda request: "four" if request.policy == "surplus" else "five")
    rows, _ = await measured(engine, repeat=1)
    assert not any(row.exact for row in rows)


async def test_agent_replies_are_longer_and_held_to_their_parts() -> None:
    engine = FakeEngine("x", facts=facts)
    await measured(engine, repeat=1)
    held = [request for request in engine.seen if request.grammar is not None]
    assert len(held) == 2 * 3 * len(TASKS[AGENT])
    assert {request.max_tokens for request in held} == {9 * AGENT_TOKENS}
    assert {request.max_tokens for request in engine.seen if request not in held} == {9}
    assert {"SENTENCE", "block"} <= set(re.findall(r"\w+", held[0].grammar.text))


async def test_short_replies_are_made_to_several_variants() -> None:
    engine = FakeEngine("x", facts=facts)
    await measured(engine, repeat=1)
    assert len(engine.seen) == 2 * 3 * sum(
        len(names) * VARIANTS.get(task, 1) for task, names in TASKS.items()
    )


def test_a_mixed_grammar_takes_the_markers_of_the_calls() -> None:
    text = mixed('start: call\ncall: <[7]> "\\n" rest <[8]>\n')
    assert text.startswith('start: part <[7]> "\\n" CALL <[8]> part\n')
    assert mixed('start: "no control tokens"\n').startswith('start: part  "\\n" CALL  part\n')
    for grammar in (text, mixed('start: "x"\n')):
        assert problem(grammar) == ""


def test_ratios_are_geometric_means_of_paired_repeats() -> None:
    assert ratio([2.0, 8.0], [1.0, 1.0]).mean == 4.0
    assert ratio([3.0], [2.0]) == Ratio(mean=1.5, low=1.5, high=1.5)
    steady, noisy = ratio([2.0, 2.1, 1.9], [1.0] * 3), ratio([1.0, 3.0, 2.0], [1.0] * 3)
    assert steady.low < steady.mean < steady.high
    assert noisy.high - noisy.low > 5 * (steady.high - steady.low)
    # t(2 degrees of freedom) is 4.30: logs of +-1 around 0 give exp(4.30 / sqrt(3)).
    e = 2.718281828
    assert ratio([e, 1.0, 1 / e], [1.0] * 3).high == pytest.approx(e ** (4.30 / 3**0.5), rel=1e-3)


def test_the_picture_is_an_svg_that_says_what_it_shows() -> None:
    picture = timeline_svg(SPANS, "A <reply>")
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert root.findtext(f"{space}title") == "A <reply>"
    titles = [title.text for title in root.iterfind(f"{space}rect/{space}title")]
    assert "dflash: 4 rounds of 8 rows, 20 tokens, 400 ms" in titles
    assert [t for t in titles if t in ("prose", "code", "tool_call")] == [
        "prose",
        "code",
        "tool_call",
    ]
    legend = [text.text for text in root.iterfind(f"{space}text")]
    assert {"target-only", "dflash", "copy", "<odd>", "1000 ms"} <= set(legend)
    # Rounds stand side by side and fill the time.
    bars = [
        (float(rect.get("x")), float(rect.get("width")))
        for rect in root.iterfind(f"{space}rect")
        if rect.find(f"{space}title") is not None
    ][: len(SPANS)]
    ends = [x + width for x, width in bars]
    assert [x for x, _ in bars[1:]] == pytest.approx(ends[:-1], abs=0.02)


def test_an_empty_timeline_is_an_empty_picture() -> None:
    ElementTree.fromstring(timeline_svg((), "nothing"))
