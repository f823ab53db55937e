"""The decoding loop: endings, cuts, turns, reuse. Models are scripted or tiny and random."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import mlx.core as mx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loops import VOCABULARY, LoopUnderTest, says, scripted
from tiny_models import FAMILIES, LATENT_FAMILIES, tiny

from engine.audit import Audit
from engine.decoding.exactness import same_state
from engine.doubles import ScriptedTarget, reorder_rows
from engine.drafters.portfolio import Portfolio
from engine.errors import EngineError
from engine.messages import (
    Exactness,
    Failed,
    Finished,
    GenerateRequest,
    Prefilling,
    Priority,
    Sampling,
)
from engine.targets.target import bind
from engine.testing import ScriptedDrafter

# Copying pays here: the reply repeats the prompt and itself.
REPEAT = "for item in items: print(item)\n" * 3
SAMPLED = Sampling(temperature=0.8, top_p=0.95, top_k=50)
PENALISED = Sampling(
    temperature=0.7, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2
)


def test_a_reply_and_its_one_ending():
    loop = scripted("héllo 😀")
    ending = loop.reply("say it\0", id="a")
    assert loop.text("a") == "héllo 😀"
    assert (ending.finish_reason, ending.prompt_tokens) == ("stop", 7)
    assert ending.tokens == (*"héllo 😀".encode(), 256)
    assert isinstance(loop.events[0], Prefilling)
    assert loop.totals.requests == 1
    assert not loop.turn()


def test_drafts_are_verified_in_blocks_and_change_nothing():
    plain = scripted(REPEAT, draft="none").reply(REPEAT + "\0")
    loop = scripted(REPEAT)
    drafted = loop.reply(REPEAT + "\0")
    assert drafted.token_hash == plain.token_hash
    assert drafted.accepted > 40
    assert drafted.rounds < plain.rounds / 3
    assert drafted.tokens_per_round > 3
    assert plain.accepted == plain.rejected == 0
    assert max(loop._target.rows) == 8


def test_draft_false_verifies_nothing():
    loop = scripted(REPEAT)
    ending = loop.reply(REPEAT + "\0", draft=False)
    assert ending.accepted == ending.rejected == 0
    assert ending.width == 1
    assert max(loop._target.rows) == 1


@pytest.mark.parametrize("limit", range(1, 24))
def test_max_tokens_cuts_exactly_there_inside_an_accepted_run(limit):
    loop = scripted(REPEAT)
    ending = loop.reply(REPEAT + "\0", max_tokens=limit)
    assert ending.tokens == tuple(REPEAT.encode()[:limit])
    assert ending.finish_reason == "length"


def test_the_end_token_cuts_inside_an_accepted_run():
    reply = REPEAT[:40]
    loop = scripted(reply)
    # The drafter goes on copying where the target stops.
    ending = loop.reply(REPEAT + "\0")
    assert ending.tokens == (*reply.encode(), 256)
    assert ending.finish_reason == "stop"
    assert ending.rejected > 0


@pytest.mark.parametrize("stop", ["items: p", ")\nfor", "item)\n"])
@pytest.mark.parametrize("draft", [True, False])
def test_a_stop_string_cuts_wherever_it_falls(stop, draft):
    loop = scripted(REPEAT)
    ending = loop.reply(REPEAT + "\0", id="a", stop=("never", stop), draft=draft)
    assert loop.text("a") == REPEAT[: REPEAT.index(stop)]
    assert (ending.finish_reason, ending.stop_sequence) == ("stop", stop)
    # No token behind the one that completes the stop string.
    assert bytes(ending.tokens).decode() == REPEAT[: REPEAT.index(stop) + len(stop)]


def test_half_a_stop_string_at_the_end_is_text():
    loop = scripted("abc")
    loop.reply("x\0", id="a", stop=("cd",))
    assert loop.text("a") == "abc"


def test_ignore_eos_goes_on_to_the_limit():
    ending = scripted("ab").reply("x\0", ignore_eos=True, max_tokens=5)
    assert ending.tokens == (97, 98, 256, 256, 256)


def test_a_reply_must_begin_with_what_was_taken_off_the_prompt():
    """The model would say something else; healing holds it to the half-typed word."""
    loop = scripted("zzz return x")
    ending = loop.reply("def f():\0", id="a", must_start_with="ré")
    assert bytes(ending.tokens[:3]).decode() == "ré"
    assert loop.text("a") == bytes(ending.tokens[3:-1]).decode()
    assert ending.accepted + ending.rejected == 0 or ending.rounds > 2


def test_a_keystroke_waits_for_one_turn_at_most():
    loop = scripted("a" * 200, chunk=16)
    loop.open(GenerateRequest(id="agent", prompt=tuple(b"x" * 90 + b"\0")))
    loop.turn()
    before = len(loop.events)
    loop.open(
        GenerateRequest(id="key", prompt=tuple(b"y\0"), max_tokens=4, priority=Priority.INTERACTIVE)
    )
    while not any(isinstance(e, Finished) for e in loop.events):
        loop.turn()
    assert {e.id for e in loop.events[before:]} == {"key"}
    loop.until_idle()
    assert isinstance(loop.ending("agent"), Finished)
    assert loop.text("agent") == "a" * 200


def test_preemption_changes_no_token():
    alone = scripted(REPEAT).reply(REPEAT + "\0").token_hash
    loop = scripted(REPEAT)
    loop.open(GenerateRequest(id="a", prompt=tuple((REPEAT + "\0").encode())))
    for number in range(12):
        loop.turn()
        loop.open(
            GenerateRequest(
                id=f"k{number}",
                prompt=tuple(b"y\0"),
                max_tokens=2,
                priority=Priority.INTERACTIVE,
            )
        )
    loop.until_idle()
    assert loop.ending("a").token_hash == alone


@pytest.mark.parametrize("turns", [0, 1, 3, 9])
def test_cancel_ends_a_request_at_once_wherever_it_is(turns):
    target = ScriptedTarget(says("b" * 300), VOCABULARY)
    loop = LoopUnderTest(target, chunk=16)
    loop.open(GenerateRequest(id="a", prompt=tuple(b"x" * 60 + b"\0")))
    for _ in range(turns):
        loop.turn()
    forwards = len(target.rows)
    loop.cancel("a")
    ending = loop.ending("a")
    assert isinstance(ending, Finished)
    assert ending.finish_reason == "cancelled"
    loop.until_idle()
    assert len(target.rows) == forwards
    loop.cancel("a")
    loop.cancel("never opened")
    assert loop.totals.cancelled == 1


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"prompt": (1,) * 512}, "context_length_exceeded", "prompt"),
        ({"prompt": (1, 261)}, "invalid_request", "prompt"),
        ({"sampling": Sampling(logit_bias=((261, 1.0),))}, "invalid_request", "logit_bias"),
    ],
)
def test_bad_requests_fail_alone_and_name_the_field(fields, code, field):
    loop = scripted("fine")
    loop.open(GenerateRequest(**{"id": "bad", "prompt": (1, 0), **fields}))
    ending = loop.ending("bad")
    assert isinstance(ending, Failed)
    assert (ending.code, ending.field) == (code, field)
    loop.reply("x\0", id="good")
    assert loop.text("good") == "fine"


def test_a_reply_stops_at_the_end_of_the_context():
    ending = scripted("a" * 900, context=64).reply("x" * 30 + "\0")
    assert ending.finish_reason == "length"
    assert len(ending.tokens) == 64 - 31


def test_a_full_queue_refuses_the_newcomer_only():
    loop = scripted("ok", max_active=1, max_queue=1)
    for name in "abc":
        loop.open(GenerateRequest(id=name, prompt=(0,)))
    ending = loop.ending("b")
    assert isinstance(ending, Failed)
    assert ending.code == "overloaded"
    loop.until_idle()
    assert isinstance(loop.ending("a"), Finished)


def test_a_storm_ends_each_request_once_and_completes_what_was_accepted():
    chance = random.Random(3)
    loop = scripted("a" * 40, max_active=2, max_queue=4, chunk=8)
    cancelled: set[str] = set()
    names = [f"r{number}" for number in range(120)]
    for name in names:
        prompt = (*chance.choices(range(1, 200), k=chance.randrange(1, 30)), 0)
        priority = chance.choice(list(Priority))
        loop.open(GenerateRequest(id=name, prompt=prompt, priority=priority))
        for _ in range(chance.randrange(6)):
            loop.turn()
        if chance.random() < 0.2:
            cancelled.add(left := chance.choice(names))
            loop.cancel(left)
    loop.until_idle()
    kinds = Counter()
    for name in names:
        ending = loop.ending(name)
        if isinstance(ending, Failed):
            kinds[ending.code] += 1
        elif ending.finish_reason == "cancelled":
            assert name in cancelled
            kinds["cancelled"] += 1
        else:
            assert loop.text(name) == "a" * 40
            kinds["whole"] += 1
    assert set(kinds) == {"overloaded", "cancelled", "whole"}
    assert (loop.active, loop.queued) == (0, 0)


def test_whose_turns_there_were_is_told_also_of_those_without_events():
    loop = scripted(REPEAT)
    turns: list[str] = []
    loop.turned = turns.append
    loop.reply(REPEAT + "\0", id="a")
    audits = turns.count("audit of a")
    # One begins it, and the prompt is cached.
    assert audits > 1
    assert turns.count("") >= 1
    assert turns.count("a") == len(turns) - audits - turns.count("")
    assert not any(event.id.startswith("audit") for event in loop.events)


def test_engine_death_ends_every_open_request():
    loop = scripted("ok")
    for name in "abc":
        loop.open(GenerateRequest(id=name, prompt=(0,)))
    loop.turn()
    loop.fail_all(EngineError("the engine has failed: out of memory"))
    for name in "abc":
        ending = loop.ending(name)
        assert isinstance(ending, Failed)
        assert "out of memory" in ending.message
    assert not loop.turn()


def prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts whose greedy continuations repeat themselves now and then."""
    pattern = tuple(range(20, 32))
    return [pattern * 3 + (40 + n,) + pattern[:5] for n in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED, PENALISED], ids=["greedy", "T", "pen"])
def test_drafting_is_lossless_on_real_layers(family, sampling):
    """The drafter knows the serial reply and spoils some of it, so that runs of every length are
    accepted and rejected."""
    loop = LoopUnderTest(bind(*tiny(family)), width=16)
    for number, prompt in enumerate(prompts(3)):
        fields = {"sampling": sampling, "seed": number, "max_tokens": 40, "ignore_eos": True}
        plain = loop.reply(prompt, draft=False, **fields)
        rng = random.Random(number)
        spoiled = [t if rng.random() < 0.8 else rng.randrange(256) for t in plain.tokens]
        loop.new_portfolio = lambda _request, _seed, known=(*prompt, *spoiled): Portfolio(
            ScriptedDrafter(known), None
        )
        drafted = loop.reply(prompt, **fields)
        assert drafted.tokens == plain.tokens
        assert drafted.accepted > 5
        assert drafted.rejected > 5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_turn_of_a_chat_recomputes_only_what_is_new(family):
    target = bind(*tiny(family))
    fresh = LoopUnderTest(target, prefix_cache_bytes=0)
    loop = LoopUnderTest(target)
    fields = {"max_tokens": 20, "ignore_eos": True, "seed": 3, "sampling": SAMPLED}
    conversation, known = prompts(1)[0], 0
    for _turn in range(3):
        reply = loop.reply(conversation, **fields)
        assert fresh.reply(conversation, **fields).tokens == reply.tokens
        assert reply.cached_tokens == known
        known = len(conversation) + len(reply.tokens) - 1
        conversation = (*conversation, *reply.tokens, 9, 8, 7)
        loop.reuse.cache.check_integrity()


@pytest.mark.parametrize("family", FAMILIES)
def test_stable_segments_are_shared_between_conversations(family):
    loop = LoopUnderTest(bind(*tiny(family)))
    system = tuple(range(60, 90))
    first = loop.reply((*system, 1, 2, 3, 4), boundaries=(30,), max_tokens=3)
    assert first.cached_tokens == 0
    other = loop.reply((*system, 5, 6, 7, 8, 9), boundaries=(30,), max_tokens=3)
    assert other.cached_tokens == 30


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cancelled_prefill_is_not_lost(family):
    loop = LoopUnderTest(bind(*tiny(family)), chunk=16)
    prompt = tuple(n % 90 for n in range(70))
    loop.open(GenerateRequest(id="a", prompt=prompt))
    loop.turn()
    loop.turn()
    loop.cancel("a")
    again = loop.reply(prompt, max_tokens=4)
    assert again.cached_tokens == 32
    fresh = LoopUnderTest(loop._target, prefix_cache_bytes=0).reply(prompt, max_tokens=4)
    assert fresh.tokens == again.tokens


def test_a_reply_leaves_caches_that_equal_a_serial_run():
    """Cut by max_tokens inside an accepted run, what is kept for the next turn is still right."""
    target = bind(*tiny("qwen3_5"))
    loop = LoopUnderTest(target)
    reply = loop.reply(prompts(1)[0], max_tokens=33, ignore_eos=True)
    tokens = [*prompts(1)[0], *reply.tokens]
    hit = loop.reuse.cache.lookup(tokens[:-1])
    assert hit is not None
    assert hit.length == len(tokens) - 1
    from engine.prefix_cache.snapshot import restore, take_snapshot

    serial = target.new_caches()
    for token in tokens[:-1]:
        target.forward([token], serial)
    kept = restore(target, [node.rows for node in hit.nodes], hit.snapshot, hit.length)
    assert same_state(target, kept, serial, hit.length, take_snapshot(serial))


def uneven_target():
    """A target whose forwards of 4 rows and more sum in another order."""
    model, config = tiny("qwen3")
    for layer in model.layers:
        # Random weights this small would let the residual stream round the difference away.
        layer.mlp.down_proj.weight *= 5000.0
    reorder_rows(model, from_rows=4)
    return bind(model, config)


def test_a_machine_whose_wide_rows_differ_is_found_out_and_still_exact():
    loop = LoopUnderTest(uneven_target(), exactness=None)
    report = loop.exactness
    assert not report.exact
    assert (report.width, report.asked, report.prefill) == (3, 8, False)
    assert "4 rows behind 8 tokens: logits of row" in report.reason
    assert "prompt chunks differ" in report.reason
    prompt = prompts(1)[0]
    drafted = loop.reply(prompt, max_tokens=40, ignore_eos=True)
    plain = loop.reply(prompt, max_tokens=40, ignore_eos=True, draft=False)
    assert drafted.tokens == plain.tokens
    assert (drafted.width, drafted.exact) == (3, True)
    assert drafted.width_reason == report.reason


def test_fast_uses_the_width_and_says_that_nothing_is_proven():
    loop = LoopUnderTest(uneven_target(), exactness=None, fast=True)
    reply = loop.reply(prompts(1)[0], max_tokens=10)
    assert (reply.width, reply.exact) == (8, False)
    assert "logits of row" in (reply.inexact_reason or "")


def test_an_exact_model_probes_exact_at_every_width():
    for family in FAMILIES:
        report = LoopUnderTest(bind(*tiny(family)), exactness=None, width=16).exactness
        assert report == Exactness(exact=True, width=16, asked=16, prefill=True)


@pytest.mark.parametrize("family", LATENT_FAMILIES)
def test_a_family_whose_rows_are_not_exact_is_served_target_only_by_name(family):
    loop = LoopUnderTest(bind(*tiny(family)), exactness=None)
    assert (loop.width, loop.exactness.width) == (1, 1)
    assert loop.exactness.reason.startswith(f"{family}: 2 rows behind 8 tokens: logits of row 1")
    reply = loop.reply(prompts(1)[0], max_tokens=12, ignore_eos=True)
    assert (reply.width, reply.accepted + reply.rejected, reply.exact) == (1, 0, True)
    assert loop.reply(prompts(1)[0], max_tokens=12, ignore_eos=True).tokens == reply.tokens


def test_where_prompt_chunks_differ_only_the_grid_is_reused():
    """A hit elsewhere would start from bits that a fresh run does not compute."""
    target = bind(*tiny("qwen3_5"))
    uneven = Exactness(exact=False, width=8, asked=8, prefill=False, reason="prompt chunks differ")
    loop = LoopUnderTest(target, exactness=uneven, chunk=16)
    prompt = tuple(n % 90 for n in range(50))
    loop.reply(prompt, boundaries=(21,), max_tokens=5)
    again = loop.reply((*prompt, 1, 2), max_tokens=5)
    assert again.cached_tokens == 48
    branch = loop.reply((*prompt[:40], 99, 98), max_tokens=5)
    assert branch.cached_tokens == 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_idle_time_replays_a_drafted_reply_and_says_nothing_about_it():
    loop = scripted(REPEAT)
    clock = Clock()
    loop.audit = Audit(60.0, clock)
    loop.reply(REPEAT + "\0", id="a")
    assert (loop.totals.audits, loop.totals.audit_differences) == (1, 0)
    assert {e.id for e in loop.events} == {"a"}
    assert loop.totals.requests == 1
    loop.reply(REPEAT + "\0")
    assert loop.totals.audits == 1
    assert loop.audit.waits == 60.0
    clock.now = 61.0
    loop.until_idle()
    assert loop.totals.audits == 2


class LyingTarget(ScriptedTarget):
    """Says something else when asked for several rows, as an inexact kernel would."""

    def forward(self, tokens, caches):
        logits = super().forward(tokens, caches)
        return mx.roll(logits, 1, axis=1) if len(tokens) > 3 else logits


def test_an_audit_that_finds_a_difference_ends_drafting_and_is_reported():
    loop = LoopUnderTest(LyingTarget(says(REPEAT), VOCABULARY))
    loop.reply(REPEAT + "\0", id="a")
    assert loop.totals.audit_differences == 1
    assert not loop.exactness.exact
    assert "reply a parts from serial decoding at token" in loop.exactness.reason
    reply = loop.reply(REPEAT + "\0")
    assert reply.accepted + reply.rejected == 0
    assert bytes(reply.tokens[:-1]).decode() == REPEAT


def test_the_audit_can_be_turned_off():
    loop = scripted(REPEAT, audit=False)
    assert loop.reply(REPEAT + "\0").accepted > 0
    assert loop.totals.audits == 0


def test_a_cancelled_or_undrafted_reply_is_not_audited():
    loop = scripted(REPEAT)
    loop.reply(REPEAT + "\0", draft=False)
    assert loop.audit.waits is None
    assert loop.totals.audits == 0
