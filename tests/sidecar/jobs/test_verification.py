from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from engine import EngineClient, EngineError, GenerateRequest, RequestError
from engine.testing import FakeEngine
from sidecar.jobs.coding_prompts import PROMPTS, CodingPrompt
from sidecar.jobs.disturbance import Disturbances
from sidecar.jobs.verification import SAMPLINGS, Verification, cases, hash_of


def drafting_facts(request: GenerateRequest) -> Mapping[str, Any]:
    drafted = {"accepted": 3, "rejected": 1, "width": 8} if request.draft else {}
    margins = {"margins": (0.5, 0.25, 0.125, 9.0)} if request.margins else {}
    return drafted | margins


async def started(engine: FakeEngine) -> EngineClient:
    client = EngineClient(engine)
    client.start()
    await client.ready()
    return client


def test_cases_cover_prompts_and_samplings_before_the_next_seed() -> None:
    grid = len(PROMPTS) * len(SAMPLINGS)
    wanted = cases(PROMPTS, grid + 1, 7)
    assert len({(case.prompt.name, case.sampling) for case in wanted[:grid]}) == grid
    assert {case.seed for case in wanted[:grid]} == {7}
    assert wanted[grid].seed == 8


def test_prompts_cover_the_regimes_and_vary() -> None:
    assert len({prompt.name for prompt in PROMPTS}) == len(PROMPTS)
    regimes = Counter(prompt.regime for prompt in PROMPTS)
    assert set(regimes) == {
        "new code",
        "rewrite",
        "chat",
        "tool call",
        "fill in the middle",
        "repetitive",
    }
    for prompt in PROMPTS:
        variants = {
            prompt.variant(number).user + prompt.variant(number).text for number in range(30)
        }
        assert len(variants) == 30
        assert all("@name@" not in variant for variant in variants)


async def test_every_prompt_renders() -> None:
    client = await started(FakeEngine())
    for prompt in PROMPTS:
        rendered = await prompt.variant(0).render(client)
        assert rendered.tokens
        assert bool(rendered.boundaries) == bool(prompt.user)
        assert bool(rendered.stop_token_ids) == (prompt.suffix is not None)
    await client.stop()


async def test_equal_replies_are_one_pair_without_a_difference() -> None:
    engine = FakeEngine("the reply", facts=drafting_facts)
    client = await started(engine)
    heard = []
    wanted = cases(PROMPTS[:2], 6, 40)
    pairs = await Verification(client, max_tokens=5).run(wanted, heard.append)
    assert heard == pairs
    for pair, case in zip(pairs, wanted, strict=True):
        assert (pair.prompt, pair.sampling, pair.seed) == (case.prompt.name, case.sampling, 40)
        assert (pair.accepted, pair.rejected, pair.width, pair.tokens) == (3, 1, 8, 5)
        assert pair.difference is None
        assert pair.drafted_hash == pair.serial_hash == hash_of(list(b"the r"))
    asked = [(request.draft, request.seed, request.max_tokens) for request in engine.seen]
    assert asked == [(True, 40, 5), (False, 40, 5)] * 6
    assert [r.sampling for r in engine.seen[::2]] == [SAMPLINGS[case.sampling] for case in wanted]
    assert all(
        a.prompt == b.prompt for a, b in zip(engine.seen[::2], engine.seen[1::2], strict=True)
    )
    await client.stop()


@pytest.mark.parametrize(
    ("drafted", "serial", "position", "margin"),
    [
        ("abcd", "abXd", 2, 0.125),
        ("Xbcd", "abcd", 0, 0.5),
        ("ab", "abc", 2, 0.125),
        # The reply that ends first has no margin there when asked again.
        ("abcdef", "abcd", 4, None),
    ],
)
async def test_a_lying_engine_is_caught_where_it_parts(
    drafted: str, serial: str, position: int, margin: float | None
) -> None:
    engine = FakeEngine(lambda r: drafted if r.draft else serial, facts=drafting_facts)
    client = await started(engine)
    pair = await Verification(client, max_tokens=9).compare(cases(PROMPTS, 1, 3)[0])
    assert pair.difference is not None
    assert (pair.difference.position, pair.difference.margin) == (position, margin)
    assert pair.drafted_hash != pair.serial_hash
    again = engine.seen[-1]
    assert (again.draft, again.margins, again.seed) == (False, True, 3)
    await client.stop()


async def test_drafts_in_a_target_only_reply_are_refused() -> None:
    client = await started(FakeEngine("x", facts={"accepted": 1}))
    with pytest.raises(EngineError, match="draft=false"):
        await Verification(client, max_tokens=4).compare(cases(PROMPTS, 1, 3)[0])
    await client.stop()


async def test_a_failed_reply_is_not_an_equal_one() -> None:
    def refuse(request: GenerateRequest) -> str:
        raise RequestError("no", field="prompt")

    client = await started(FakeEngine(refuse))
    with pytest.raises(RequestError, match="no"):
        await Verification(client, max_tokens=4).compare(cases(PROMPTS, 1, 3)[0])
    with pytest.raises(RequestError, match="no"):
        await Verification(client, max_tokens=4, disturbances=Disturbances(client, 1)).compare(
            cases(PROMPTS, 1, 3)[0]
        )
    await client.stop()


async def test_disturbances_happen_and_change_no_pair() -> None:
    engine = FakeEngine("a reply long enough to disturb", facts=drafting_facts)
    client = await started(engine)
    disturbances = Disturbances(client, 5)
    verification = Verification(client, max_tokens=12, disturbances=disturbances)
    pairs = await verification.run(cases(PROMPTS, 40, 1), lambda pair: None)
    assert all(pair.difference is None for pair in pairs)
    tally = disturbances.tally
    # A disturbance a reply, two replies a pair.
    assert tally.preemptions + tally.cancellations + tally.repeats == 80
    assert min(tally.preemptions, tally.cancellations, tally.repeats) > 10
    assert len(engine.seen) == 80 + 80
    assert client.open_requests == 0
    await client.stop()


async def test_a_difference_under_disturbance_is_caught() -> None:
    engine = FakeEngine(lambda r: "abc" if r.draft else "abX", facts=drafting_facts)
    client = await started(engine)
    verification = Verification(client, max_tokens=9, disturbances=Disturbances(client, 1))
    pairs = await verification.run(cases(PROMPTS, 12, 1), lambda pair: None)
    assert [pair.difference.position for pair in pairs if pair.difference] == [2] * 12
    await client.stop()


def test_the_hash_is_over_little_endian_words() -> None:
    assert hash_of([1, 258]) == hashlib.sha256(struct.pack("<2I", 1, 258)).hexdigest()


async def test_the_pace_comes_from_a_target_only_reply() -> None:
    engine = FakeEngine("abc", facts={"decode_ms": 30.0})
    client = await started(engine)
    prompt = CodingPrompt(name="p", regime="r", text="x")
    pace = await Verification(client, max_tokens=4).token_seconds(cases([prompt], 1, 1)[0])
    assert pace == pytest.approx(0.03 / 3)
    assert engine.seen[0].draft is False
    await client.stop()


@pytest.mark.parametrize("disturbed", [False, True])
async def test_the_real_engine_gives_equal_replies(
    builtin_engine: EngineClient, disturbed: bool
) -> None:
    copying = [prompt for prompt in PROMPTS if prompt.name == "asserts"]
    disturbances = Disturbances(builtin_engine, 3) if disturbed else None
    verification = Verification(builtin_engine, max_tokens=10, disturbances=disturbances)
    pairs = await verification.run(cases(copying, 3, 11), lambda pair: None)
    assert [pair.difference for pair in pairs] == [None] * 3
    # How many are rejected is the model's affair; that some are verified is ours.
    assert sum(pair.accepted for pair in pairs) > 5
    assert sum(pair.cached_tokens for pair in pairs) > 0
    if disturbances is not None:
        assert disturbances.tally.prefix_hits > 0
