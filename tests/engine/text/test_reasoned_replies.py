"""Replies that are held to a form, and may reason first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.messages import RenderedPrompt, ReplyFormat
from engine.text.codec import TextCodec
from engine.text.constraints import Grammars

SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    | {"additionalProperties": False}
)
TOOLS: Any = [{"type": "function", "function": {"name": "now"}}]
FORMS = {
    "json": (ReplyFormat(schema=SCHEMA, reasons=True), '{"a": 1}'),
    "call": (
        ReplyFormat(calls=True, several=False, reasons=True),
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
}


def accepted(codec: TextCodec, form: ReplyFormat, text: str, opened: str) -> bool:
    """Whether the grammar lets all of `text` through, as a whole reply."""
    prompt = RenderedPrompt(tokens=(1,), reasoning=opened)
    grammar = codec.grammar(form, TOOLS, prompt=prompt)
    constraint = Grammars(codec.token_bytes(), codec.eos_token_ids, codec.encode).begin(grammar)
    for token in codec.encode(text, control=True):
        if not constraint.rows([], codec.vocab_size)[1][0][token]:
            return False
        constraint.commit(token)
    return constraint.finished or bool(
        constraint.rows([], codec.vocab_size)[1][0][list(codec.eos_token_ids)].any()
    )


@pytest.mark.parametrize("kind", FORMS)
def test_reasoning_may_come_first(codec: TextCodec, kind: str) -> None:
    form, answer = FORMS[kind]
    thought = "\nHm, {x} <b> ```\n</think>\n\n"
    assert accepted(codec, form, thought + answer, "<think>")
    assert accepted(codec, form, f"<think>{thought}{answer}", "")
    assert accepted(codec, form, answer, "")
    assert not accepted(codec, form, f"{thought}Well: {answer}", "<think>")
    plain = ReplyFormat(schema=form.schema, calls=form.calls, several=False)
    assert not accepted(codec, plain, f"<think>{thought}{answer}", "")
