"""Masks: what a row may choose depends on the tokens before it and on nothing else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, RequestError
from engine.messages import Grammar
from engine.testing import EOS, ByteCodec
from engine.text.codec import TextCodec
from engine.text.constraints import MAX_COMPILED, Constraint, Grammars
from engine.text.json_schema import json_rule

# Wider than the vocabularies: logits may be padded.
WIDTH = 300
BYTES = ByteCodec()
GRAMMARS = Grammars(BYTES.token_bytes(), [EOS], BYTES.encode)

SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]},
    {"type": "array", "items": {"enum": ["a", "ab", "abc"]}, "maxItems": 3},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"anyOf": [{"const": "a long text that is forced"}, {"type": "number"}, {"type": "null"}]},
]


def grammar(schema: Any) -> Grammar:
    return Grammar(text=f"start: {json_rule(schema, field='response_format')}")


def begun(schema: Any, text: str = "", grammars: Grammars = GRAMMARS) -> Constraint:
    constraint = grammars.begin(grammar(schema))
    for token in text.encode():
        constraint.commit(token)
    return constraint


def allowed(constraint: Constraint) -> set[str]:
    (mask,) = constraint.rows([], WIDTH)[1]
    return {"EOS" if token == EOS else chr(token) for token in np.flatnonzero(mask)}


def accepts(schema: Any, text: str) -> bool:
    """Whether `text` is a whole reply."""
    constraint = GRAMMARS.begin(grammar(schema))
    for token in text.encode():
        if constraint.finished or not constraint.rows([], WIDTH)[1][0, token]:
            return False
        constraint.commit(token)
    return constraint.finished or bool(constraint.rows([], WIDTH)[1][0, EOS])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), schema=st.sampled_from(SCHEMAS))
def test_drafts_that_were_looked_at_leave_no_trace(data: st.DataObject, schema: Any) -> None:
    seen = begun(schema)
    committed: list[int] = []
    while not seen.finished and len(committed) < 24:
        if data.draw(st.booleans()):
            seen.forced(4)
        drafts = walked(data, schema, committed)
        kept, masks = seen.rows(drafts, WIDTH)
        assert kept == drafts[: len(kept)]
        assert masks.shape == (len(kept) + 1, WIDTH)
        for row, mask in enumerate(masks):
            serial = replayed(schema, [*committed, *kept[:row]])
            if serial.finished:
                assert row == len(kept)
                assert mask.all()
            else:
                assert np.array_equal(serial.rows([], WIDTH)[1][0], mask)
        if len(kept) < len(drafts) and not replayed(schema, [*committed, *kept]).finished:
            assert not masks[-1, drafts[len(kept)]]
        count = data.draw(st.integers(0, len(kept)))
        run = kept[:count]
        if not replayed(schema, [*committed, *run]).finished:
            run = [*run, data.draw(st.sampled_from(np.flatnonzero(masks[count]).tolist()))]
        for token in run:
            seen.commit(token)
            committed.append(token)


def replayed(schema: Any, tokens: list[int]) -> Constraint:
    constraint = GRAMMARS.begin(grammar(schema))
    for token in tokens:
        constraint.commit(token)
    return constraint


def walked(data: st.DataObject, schema: Any, committed: list[int]) -> list[int]:
    """A few drafts, most of them allowed."""
    constraint, drafts = replayed(schema, committed), list[int]()
    for _ in range(data.draw(st.integers(0, 6))):
        if constraint.finished or data.draw(st.integers(0, 9)) == 0:
            return [*drafts, data.draw(st.integers(0, 260))]
        mask = constraint.rows([], WIDTH)[1][0]
        drafts.append(data.draw(st.sampled_from(np.flatnonzero(mask).tolist())))
        constraint.commit(drafts[-1])
    return drafts


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer"}, ["7", "-12"], ["", "7.5", "07", "1a"]),
        ({"type": "object"}, ['{"a": [1, null]}', "{}"], ["[]", "{", '{"a":1}', '{ "a": 1}']),
        ({"enum": ["é", 3]}, ['"é"', "3"], ['"e"', "4", '"\\u00e9"']),
        ({"type": "string", "maxLength": 2}, ['"😀é"', '""', '"\\n"'], ['"abc"', '"\n"', '"a']),
        ({"type": "string", "format": "date"}, ['"2026-11-30"'], ['"2026-13-30"', '"today"']),
        ({"type": "string", "format": "int32"}, ['"anything"'], ["5"]),
        (True, ["1", '"a"', "{}"], ["x", ""]),
    ],
)
def test_what_a_schema_lets_through(schema: Any, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not accepts(schema, text)] == []
    assert [text for text in wrong if accepts(schema, text)] == []


def test_a_reply_ends_where_nothing_can_follow() -> None:
    constraint = begun({"const": 1})
    constraint.commit(ord("1"))
    assert constraint.finished
    number = begun({"type": "integer"}, "12")
    assert not number.finished
    assert "EOS" in allowed(number)
    number.commit(EOS)
    assert number.finished


def test_a_draft_that_ends_the_reply_is_the_last_one() -> None:
    constraint = begun({"const": 1})
    kept, masks = constraint.rows([ord("1"), EOS, 5], WIDTH)
    assert kept == [ord("1")]
    assert masks[1].all()
    number = begun({"type": "integer"}, "12")
    assert number.rows([ord("3"), EOS, 5], WIDTH)[0] == [ord("3"), EOS]
    assert not number.finished


def test_control_tokens_and_padding_are_never_allowed() -> None:
    mask = begun({"type": "string"}, '"').rows([], WIDTH)[1][0]
    assert mask[ord("a")]
    assert not mask[EOS:].any()


def test_forced_text_is_known_without_a_model(codec: TextCodec) -> None:
    schema = {"type": "object", "properties": {"file_name": {"const": "a.py"}}}
    schema["required"] = ["file_name"]
    grammars = Grammars(codec.token_bytes(), codec.eos_token_ids, codec.encode)
    constraint = grammars.begin(grammar(schema))
    tokens = constraint.forced(99)
    assert '{"file_name": "a.py"}'.startswith(codec.decode(tokens))
    assert len(tokens) > 3
    assert constraint.forced(2) == tokens[:2]
    for token in tokens:
        constraint.commit(token)
    assert begun({"type": "string"}).forced(9) == [ord('"')]
    assert begun({"const": 1}, "1").forced(9) == []


def test_a_token_outside_the_grammar_is_our_own_mistake() -> None:
    with pytest.raises(EngineError, match="the reply is outside its grammar"):
        begun({"type": "integer"}).commit(ord("x"))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {}}, 'Unimplemented keys: ["not"]'),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"$ref": "#"}, "no reply can satisfy it"),
        ({"$ref": "https://example.com/a.json"}, "Resource 'https://example.com/a.json' is not"),
        ({"minimum": 5, "maximum": 3, "type": "integer"}, "Unsatisfiable schema"),
        ({"type": "string", "pattern": "("}, "regex parse error"),
    ],
)
def test_a_grammar_that_cannot_be_used_says_why(schema: Any, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        GRAMMARS.begin(Grammar(text=grammar(schema).text, field="response_format"))
    assert caught.value.field == "response_format"
    assert reason in caught.value.message
    assert "start:" not in caught.value.message


def test_a_grammar_that_grows_too_large_ends_its_own_reply_only() -> None:
    """It recurs for ever, so llguidance gives up on the forced text."""
    node = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}
    endless = {"$ref": "#/$defs/n", "$defs": {"n": node | {"additionalProperties": False}}}
    text = f"start: [] | {json_rule(endless, field='x')}".replace("[]", '"[" "]"')
    constraint = GRAMMARS.begin(Grammar(text=text, field="response_format"))
    # Drafts lead there, and nothing is lost.
    kept, masks = constraint.rows(list(b'{"c": {"c"'), WIDTH)
    assert (kept, len(masks)) == ([ord("{")], 2)
    assert np.flatnonzero(masks[0]).tolist() == [ord("["), ord("{")]
    assert np.array_equal(constraint.rows([], WIDTH)[1][0], masks[0])
    constraint.commit(ord("{"))
    assert np.array_equal(constraint.rows([], WIDTH)[1][0], masks[1])
    with pytest.raises(RequestError, match="response_format is too complex: ") as caught:
        constraint.commit(ord('"'))
    assert caught.value.field == "response_format"


def test_a_model_without_an_end_token_cannot_be_held_to_anything() -> None:
    with pytest.raises(RequestError, match="no end token"):
        Grammars(BYTES.token_bytes(), [999], BYTES.encode)


def test_grammars_in_use_are_compiled_once() -> None:
    grammars = Grammars(BYTES.token_bytes(), [EOS], BYTES.encode)
    for number in range(MAX_COMPILED + 3):
        begun({"const": number}, grammars=grammars)
        begun({"const": "often"}, grammars=grammars)
    assert len(grammars._compiled) == MAX_COMPILED
    assert grammar({"const": "often"}).text in grammars._compiled
    assert grammar({"const": 0}).text not in grammars._compiled


def test_every_token_of_a_real_vocabulary_is_spelled_as_the_codec_reads_it(
    codec: TextCodec,
) -> None:
    grammars = Grammars(codec.token_bytes(), codec.eos_token_ids, codec.encode)
    value = {"naïve 日本 😀": ["tab\t", 'quo"te', 1.5, None]}
    constraint = grammars.begin(grammar({"const": value}))
    tokens: list[int] = []
    while not constraint.finished:
        mask = constraint.rows([], codec.vocab_size)[1][0]
        tokens.append(int(np.flatnonzero(mask)[0]))
        constraint.commit(tokens[-1])
    assert json.loads(codec.decode(tokens)) == value
