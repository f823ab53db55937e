"""Replies held to a grammar, through the decoding loop. Models are scripted or tiny and random."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loops import VOCABULARY, LoopUnderTest, says, scripted
from tiny_models import tiny

from engine.doubles import ScriptedTarget
from engine.drafters.portfolio import Portfolio
from engine.errors import RequestError
from engine.messages import Failed, GenerateRequest, Grammar, Sampling
from engine.targets.target import bind
from engine.testing import EOS, ScriptedDrafter
from engine.text.json_schema import json_rule

SAMPLED = Sampling(temperature=1.0, top_p=0.98)
PENALISED = Sampling(
    temperature=0.9, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2
)
PLACE = {
    "type": "object",
    "properties": {
        "file_name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["declaration", "definition", "déjà vu"]},
        "lines": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["file_name", "kind", "lines"],
    "additionalProperties": False,
}


def grammar(schema: Any) -> Grammar:
    text = f"start: {json_rule(schema, field='response_format')}"
    return Grammar(text=text, field="response_format")


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(), id="greedy", marks=pytest.mark.slow),
        pytest.param(SAMPLED, id="T"),
        pytest.param(PENALISED, id="pen", marks=pytest.mark.slow),
    ],
)
def test_drafting_is_lossless_under_a_grammar(family, sampling):
    """The drafter knows the serial reply and spoils some of it, also with what is not allowed."""
    loop = LoopUnderTest(bind(*tiny(family)), width=8)
    accepted = rejected = 0
    for number in range(3):
        prompt = (*range(20, 40), number)
        fields = {"sampling": sampling, "seed": number, "grammar": grammar(PLACE)}
        plain = loop.reply(prompt, draft=False, max_tokens=100, **fields)
        rng = random.Random(number)
        spoiled = [t if rng.random() < 0.8 else rng.randrange(VOCABULARY) for t in plain.tokens]
        loop.new_portfolio = lambda _request, _seed, known=(*prompt, *spoiled): Portfolio(
            ScriptedDrafter(known), None
        )
        drafted = loop.reply(prompt, max_tokens=100, **fields)
        assert drafted.tokens == plain.tokens
        assert drafted.finish_reason == plain.finish_reason
        accepted += drafted.accepted
        rejected += drafted.rejected
    assert accepted > 30
    assert rejected > 3


@pytest.mark.parametrize("draft", [True, False])
def test_the_reply_is_what_the_grammar_allows_and_ends_with_it(draft):
    """The model would rather say something else."""
    loop = scripted("kind regards")
    ending = loop.reply("x\0", id="a", grammar=grammar({"enum": ["right", "wrong"]}), draft=draft)
    assert loop.text("a") in ('"right"', '"wrong"')
    assert ending.finish_reason == "stop"
    assert ending.tokens[-1] == ord('"')


def test_forced_text_is_drafted_without_a_drafter_model():
    reply = '{"file_name": "a", "kind": "definition", "lines": []}'
    loop = scripted(reply)
    drafted = loop.reply("x\0", grammar=grammar(PLACE))
    plain = loop.reply("x\0", grammar=grammar(PLACE), draft=False)
    assert bytes(drafted.tokens).decode() == reply
    assert drafted.tokens == plain.tokens
    assert drafted.rejected == 0
    assert drafted.accepted > 30
    assert drafted.rounds < plain.rounds / 2
    assert max(loop._target.rows) <= 8


def test_an_end_token_is_taken_where_the_reply_may_end():
    loop = scripted("12")
    ending = loop.reply("x\0", grammar=grammar({"type": "integer"}))
    assert ending.tokens == (*b"12", EOS)
    # Without it the grammar still ends the reply.
    ending = loop.reply("x\0", grammar=grammar({"type": "integer"}), ignore_eos=True)
    assert ending.tokens == (*b"12", EOS)
    assert ending.finish_reason == "stop"


def test_an_end_token_is_not_taken_before():
    loop = scripted("")
    ending = loop.reply("x\0", id="a", grammar=grammar({"type": "boolean"}))
    assert loop.text("a") in ("true", "false")
    assert EOS not in ending.tokens


def test_limits_and_stop_strings_cut_as_ever():
    loop = scripted('"abc')
    cut = loop.reply("x\0", grammar=grammar({"type": "string"}), max_tokens=3)
    assert (cut.tokens, cut.finish_reason) == (tuple(b'"ab'), "length")
    stopped = loop.reply("x\0", id="s", grammar=grammar({"type": "string"}), stop=("bc",))
    assert (stopped.finish_reason, stopped.stop_sequence) == ("stop", "bc")
    assert loop.text("s") == '"a'


def test_a_grammar_that_cannot_be_used_fails_alone():
    loop = scripted("12")
    loop.open(GenerateRequest(id="bad", prompt=(1, 0), grammar=grammar({"not": {}})))
    ending = loop.ending("bad")
    assert isinstance(ending, Failed)
    assert (ending.code, ending.field) == ("invalid_request", "response_format")
    loop.reply("x\0", id="good", grammar=grammar({"type": "integer"}))
    assert loop.text("good") == "12"


def test_a_grammar_and_a_healed_start_exclude_each_other():
    with pytest.raises(RequestError) as caught:
        GenerateRequest(id="a", prompt=(1,), grammar=grammar({}), must_start_with="x")
    assert caught.value.field == "must_start_with"


def test_a_reply_under_a_grammar_is_audited_like_any_other():
    loop = scripted('{"file_name": "a", "kind": "definition", "lines": []}')
    loop.reply("x\0", grammar=grammar(PLACE))
    assert (loop.totals.audits, loop.totals.audit_differences) == (1, 0)


def test_logits_may_be_padded_beyond_the_vocabulary():
    target = ScriptedTarget(says("12"), VOCABULARY + 59)
    loop = LoopUnderTest(target)
    assert loop.reply("x\0", grammar=grammar({"type": "integer"})).tokens == (*b"12", EOS)
    loop = LoopUnderTest(ScriptedTarget(lambda _tokens: VOCABULARY + 7, VOCABULARY + 59))
    loop.reply("x\0", id="a", grammar=grammar({"enum": ["a", "b"]}))
    assert json.loads(loop.text("a")) in ("a", "b")


@pytest.mark.parametrize("draft", [True, False])
def test_two_replies_under_grammars_take_turns(draft):
    loop = scripted("12345")
    number, text = grammar({"type": "integer"}), grammar({"enum": ["yes", "no"]})
    loop.open(GenerateRequest(id="n", prompt=(1, 0), grammar=number, draft=draft))
    loop.open(GenerateRequest(id="t", prompt=(2, 0), grammar=text, draft=draft))
    loop.until_idle()
    assert loop.text("n") == "12345"
    assert loop.text("t") in ('"yes"', '"no"')
