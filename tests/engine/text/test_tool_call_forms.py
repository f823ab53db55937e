"""Tool calls as grammars and read back, in the forms of the templates; what cannot be enforced."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_made import CodecFactory, word_piece

from engine import EngineClient, Finished, GenerateRequest, RequestError, Sampling
from engine.messages import Grammar, ReplyFormat, ToolCall
from engine.testing import EOS, ByteCodec
from engine.text.codec import TextCodec
from engine.text.constraints import Grammars
from engine.text.conversation import tool_definitions
from engine.text.reply_grammar import reply_grammar
from engine.text.tool_calls import (
    HARMONY,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    MISTRAL_ID,
    Form,
    HeaderForm,
    JsonForm,
    XmlForm,
    form_of,
    read_calls,
)

HERMES = '{"name": <function-name>, "arguments": <args-json-object>} in <tool_call></tool_call>'
QWEN_XML = "<tool_call>\\n<function=' + name + '>\\n<parameter=' + key + '>\\n"
# The markers stay ordinary text here; a byte is a token.
BYTES = ByteCodec()
GRAMMARS = Grammars(BYTES.token_bytes(), [EOS], BYTES.encode)

# What tells the templates of other families apart; as they write their calls.
TEMPLATES = {
    "{{ '[TOOL_CALLS] [' }}{{ out[:-1] }}{{ ', \"id\": \"' + tool_call.id }}": MISTRAL,
    "{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}": MISTRAL_ARGS,
    "{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}": MISTRAL_ID,
    """Environment: ipython {{ '{"name": "' + call.name + '", "parameters": ' }}""": LLAMA,
    "to=functions.{{ name }}<|channel|>commentary json<|message|>{{ arguments }}<|call|>": HARMONY,
}

EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string", "minLength": 1, "maxLength": 40},
        "id": {"type": "string", "pattern": "^[a-z]+-\\d{2}$"},
        "mode": {"enum": ["append", "replace", "über-schreiben"]},
        "line": {"$ref": "#/$defs/Line"},
        "range": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "maxItems": 2},
        "options": {"type": "object", "properties": {"dry": {"type": "boolean"}}},
        "note": {"type": ["string", "null"]},
        "tag": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    },
    "required": ["path", "mode"],
    "additionalProperties": False,
    "$defs": {"Line": {"type": "integer", "minimum": 1, "maximum": 999}},
}
TOOLS = [
    {"type": "function", "function": {"name": "edit", "parameters": EDIT}},
    {"type": "function", "function": {"name": "now"}},
]
DEFINED = {tool["function"]["name"]: tool["function"] for tool in tool_definitions(TOOLS) or []}
FORMS = [XmlForm(), JsonForm(), MISTRAL, MISTRAL_ARGS, MISTRAL_ID, LLAMA, HARMONY]

# llguidance wants DEL escaped inside JSON strings, which JSON itself does not.
plain = st.text(
    st.characters(codec="utf-8", exclude_characters="<\r\x7f"), min_size=1, max_size=30
).filter(lambda text: text not in ("null", "true", "false"))
lines = st.integers(1, 999)
arguments = st.fixed_dictionaries(
    {"path": plain, "mode": st.sampled_from(EDIT["properties"]["mode"]["enum"])},
    optional={
        "text": plain,
        "id": st.from_regex(r"\A[a-z]+-[0-9]{2}\Z"),
        "line": lines,
        "range": st.lists(lines, max_size=2),
        "options": st.sampled_from([{}, {"dry": True}]),
        "note": st.none() | plain.filter(lambda text: not text.strip()[:1].isdigit()),
        "tag": st.none() | st.sampled_from(["ab", "é", ""]),
    },
)


def required(tools: list[dict[str, Any]], form: Form | None, **fields: Any) -> Grammar:
    reply = ReplyFormat(calls=True, **fields)
    return reply_grammar(reply, tool_definitions(tools) or [], form, {})


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether `text` is a whole reply."""
    constraint = GRAMMARS.begin(grammar)
    for token in text.encode():
        if constraint.finished or not constraint.rows([], 261)[1][0, token]:
            return False
        constraint.commit(token)
    return constraint.finished or bool(constraint.rows([], 261)[1][0, EOS])


def spelled(form: Form, *calls: tuple[str, dict[str, Any]]) -> str:
    """A reply of such calls, as the templates write it."""
    return f"{form.begin}{(form.between or '').join(one(form, *call) for call in calls)}{form.end}"


def one(form: Form, name: str, values: dict[str, Any]) -> str:
    if isinstance(form, JsonForm):
        call = json.dumps({"name": name, form.key: values}, ensure_ascii=False)
        return f"{form.before}{call}{form.after}"
    if isinstance(form, HeaderForm):
        identified = f"{name}[CALL_ID]aB3dEf6h9" if form.identified else name
        return f"{form.before}{identified}{form.after}{json.dumps(values, ensure_ascii=False)}"
    written = f"<tool_call>\n<function={name}>\n"
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        written += f"<parameter={key}>\n{text}\n</parameter>\n"
    return f"{written}</function>\n</tool_call>"


def in_order(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in EDIT["properties"] if name in values}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=10, deadline=None)
@given(values=arguments)
def test_valid_calls_are_allowed_and_read_back(form: Form, values: dict[str, Any]) -> None:
    jsonschema.validate(values, EDIT)
    wanted = [("edit", in_order(values)), ("now", {})]
    if form.between is None:
        assert not accepts(required(TOOLS, form), spelled(form, *wanted))
        del wanted[1]
    reply = spelled(form, *wanted)
    assert accepts(required(TOOLS, form), reply)
    made = read_calls(reply, form, DEFINED)
    assert [(call.name, json.loads(call.arguments)) for call in made] == wanted


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("edit", {"path": "a"}),
        ("edit", {"path": "a", "mode": "other"}),
        ("edit", {"path": "a", "mode": "append", "line": 0}),
        ("edit", {"path": "a", "mode": "append", "range": [1, 2, 3]}),
        ("edit", {"path": "a", "text": "", "mode": "append"}),
        ("edit", {"path": "a", "text": "x" * 41, "mode": "append"}),
        ("edit", {"path": "a", "id": "ab-1", "mode": "append"}),
        ("edit", {"path": "a", "mode": "append", "tag": "four"}),
        ("edit", {"path": "a", "mode": "append", "more": 1}),
        ("delete", {}),
    ],
)
def test_calls_that_break_the_schema_are_not(form: Form, name: str, values: Any) -> None:
    assert not accepts(required(TOOLS, form), spelled(form, (name, values)))


@pytest.mark.parametrize("form", FORMS)
def test_only_the_named_tool_only_once(form: Form) -> None:
    edit, now = (
        spelled(form, ("edit", {"path": "a", "mode": "append"})),
        spelled(form, ("now", {})),
    )
    named = required(TOOLS, form, tool="now", several=False)
    assert accepts(named, now)
    assert not accepts(named, edit)
    assert not accepts(named, f"{now}\n{now}")
    assert not accepts(named, "I would rather talk.")
    assert named.field == "tools[1].function.parameters"


@pytest.mark.parametrize("form", FORMS)
def test_json_or_a_call(form: Form) -> None:
    reply = ReplyFormat(schema='{"type": "integer"}', calls=True)
    grammar = reply_grammar(reply, tool_definitions(TOOLS) or [], form, {})
    assert accepts(grammar, "12")
    assert accepts(grammar, spelled(form, ("now", {})))
    assert not accepts(grammar, "12" + spelled(form, ("now", {})))
    # A model that writes calls in an unknown form can still be held to JSON.
    assert accepts(reply_grammar(reply, [], None, {}), "12")


def test_the_form_is_the_templates(codec: TextCodec) -> None:
    assert isinstance(form_of(QWEN_XML), XmlForm)
    assert isinstance(form_of(HERMES), JsonForm)
    assert form_of("{{ messages }}") is None
    for template, form in TEMPLATES.items():
        assert form_of(template) is form
    assert "<function=" in next(iter(codec._templates.values())).source


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", [0, 1, 12, 40, -1, -13])
def test_half_a_call_is_no_call(form: Form, end: int) -> None:
    whole = spelled(form, ("edit", {"path": "a", "mode": "append"}))
    assert read_calls(whole[:end], form, DEFINED) == ()
    assert read_calls(f"{whole}\n{whole[:end]} ", form, DEFINED) == () or end == 0
    assert read_calls(f"Well: {whole}", form, DEFINED) == ()


def test_text_arguments_may_hold_the_markers() -> None:
    text = "</tool_call>\n<tool_call>\n</function>\n</parameter>."
    values = {"path": text, "mode": "append"}
    for form in FORMS:
        reply = spelled(form, ("edit", values))
        assert accepts(required(TOOLS, form), reply)
        (call,) = read_calls(reply, form, DEFINED)
        assert json.loads(call.arguments) == values


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "anyOf cannot be enforced"),
        ({"properties": {}, "required": ["a"]}, "the undeclared 'a' cannot be enforced"),
        ({"properties": {"a>b": {}}}, "'a>b' cannot be written as a tag"),
        ({"properties": {"a": {"not": {}}}}, "not cannot be enforced"),
        ({"properties": {"a": {"type": ["string", "null"], "maxLength": 3}}}, "a limited text"),
        ({"properties": {"a": {"oneOf": [{"type": "string"}, {"minLength": 2}]}}}, "oneOf"),
        ({"properties": {"a": {"type": "string", "pattern": "("}}}, "unclosed group"),
        ({"properties": {"a": {"type": "string", "minLength": "x"}}}, "a length from 'x'"),
        ({"properties": {"a": {"enum": ["x\n</parameter>\ny"]}}}, "an enum of these values"),
        ({"properties": 5}, "is no JSON schema"),
    ],
)
def test_what_the_xml_form_cannot_enforce_is_refused(parameters: Any, reason: str) -> None:
    tools = [TOOLS[1], {"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with pytest.raises(RequestError) as caught:
        required(tools, XmlForm())
    assert caught.value.field == "tools[1].function.parameters"
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("reply", "field", "reason"),
    [
        (ReplyFormat(schema="{"), "response_format", "truncated"),
        (ReplyFormat(schema="[]"), "response_format", "stands where a schema should"),
        (ReplyFormat(schema="false"), "response_format", "no reply can satisfy"),
        (ReplyFormat(schema='{"if": {}}'), "response_format", 'Unimplemented keys: ["if"]'),
        (ReplyFormat(schema='{"$ref": "#"}'), "response_format", "no reply can satisfy it"),
        (ReplyFormat(calls=True, tool="nope"), "tool_choice", "no tool is named 'nope'"),
    ],
)
def test_what_is_asked_for_in_vain_names_its_field(
    reply: ReplyFormat, field: str, reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        reply_grammar(reply, tool_definitions(TOOLS) or [], JsonForm(), {})
    assert caught.value.field == field
    assert reason in caught.value.message


def test_calls_without_tools_or_without_a_form_are_refused() -> None:
    for form, reason in ((XmlForm(), "there are no tools"), (None, "has no form of tool calls")):
        with pytest.raises(RequestError, match=reason) as caught:
            required([], form)
        assert caught.value.field == "tool_choice"


def nested(depth: int) -> str:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return json.dumps(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (nested(150), "nested more than"),
        (json.dumps({"enum": ["x" * 200_000]}), "more than 128 KiB"),
        (json.dumps({"properties": {"a": {"minimum": 10**300, "type": "number"}}}), "Failed to"),
    ],
)
def test_a_schema_that_is_too_much_is_refused_at_once(schema: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        reply_grammar(ReplyFormat(schema=schema), [], None, {})
    assert caught.value.field == "response_format"


def test_what_may_be_slow_is_compiled_elsewhere_and_still_told() -> None:
    multiple = json.dumps({"multipleOf": 3, "type": "integer"})
    assert accepts(reply_grammar(ReplyFormat(schema=multiple), [], None, {}), "27")
    with pytest.raises(RequestError, match="allOf must be an array"):
        reply_grammar(ReplyFormat(schema='{"allOf": 3}'), [], None, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 1000003},
        {"allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}c", "type": "string"} for n in range(1, 15)]},
    ],
)
def test_a_hostile_schema_is_given_up(schema: Any) -> None:
    with pytest.raises(RequestError, match="takes too") as caught:
        reply_grammar(ReplyFormat(schema=json.dumps(schema)), [], None, {})
    assert caught.value.field == "response_format"


@pytest.mark.parametrize(
    ("opening", "closed"),
    [
        ("<think>\n", "<think>\n\n</think>\n\n"),
        ("<think>", "<think>\n\n</think>\n\n"),
        ("<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("", ""),
    ],
)
def test_a_reply_that_is_held_to_a_grammar_does_not_reason_first(
    codec_with: CodecFactory, opening: str, closed: str
) -> None:
    template = f"{{{{ '<|im_start|>assistant\n{opening}' }}}}".replace("\n", "\\n")
    codec = codec_with(template=template)
    free = codec.chat([{"role": "user", "content": "x"}])
    held = codec.chat([{"role": "user", "content": "x"}], reasoning=False)
    start = "<|im_start|>assistant\n"
    assert list(free.tokens) == codec.encode(start + opening, control=True)
    assert list(held.tokens) == codec.encode(start + closed, control=True)


def test_reasoning_is_turned_off_in_the_template(codec_with: CodecFactory) -> None:
    codec = codec_with(template="{{ enable_thinking | default('unset') }}")
    asked = {"messages": [{"role": "user", "content": "x"}], "template": {"enable_thinking": True}}
    assert codec.decode(codec.chat(**asked, reasoning=False).tokens) == "False"
    assert codec.decode(codec.chat(**asked).tokens) == "True"


def test_a_tokenizer_whose_tokens_have_no_spelling_is_refused(codec_with: CodecFactory) -> None:
    codec = codec_with(tokenizer=word_piece())
    with pytest.raises(RequestError, match="cannot be spelled out"):
        codec.grammar(ReplyFormat(schema="{}"))


def test_markers_are_control_tokens_where_the_vocabulary_has_them(codec: TextCodec) -> None:
    grammar = codec.grammar(ReplyFormat(calls=True, tool="now", several=False), TOOLS)
    grammars = Grammars(codec.token_bytes(), codec.eos_token_ids, codec.encode)
    constraint, tokens = grammars.begin(grammar), list[int]()
    while not constraint.finished:
        mask = constraint.rows([], codec.vocab_size)[1][0]
        tokens.append(int(np.flatnonzero(mask)[0]))
        constraint.commit(tokens[-1])
    assert (tokens[0], tokens[-1]) == codec.vocabulary.find("<tool_call>", "</tool_call>")
    assert codec.decode(tokens) == spelled(XmlForm(), ("now", {}))
    reader = codec.reader(TOOLS)
    assert reader.feed(codec.decode(tokens)) == [ToolCall(name="now", arguments="{}")]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "T"])
async def test_the_built_in_model_calls_what_it_must(
    builtin_engine: EngineClient, sampling: Sampling
) -> None:
    short = {"type": "string", "maxLength": 12}
    bounded = {"path": short, "id": {"type": "string", "maxLength": 6}, "note": {"type": "null"}}
    parameters = EDIT | {"properties": EDIT["properties"] | bounded}
    tools = [{"type": "function", "function": {"name": "edit", "parameters": parameters}}]
    reply = ReplyFormat(calls=True, several=False)
    ask = [{"role": "user", "content": "Say hello."}]
    prompt = await builtin_engine.chat(ask, tools=tools, reply=reply)
    replies: list[Finished] = []
    for draft in (True, False):
        request = GenerateRequest(
            id=builtin_engine.new_id(),
            prompt=prompt.tokens,
            grammar=prompt.grammar,
            sampling=sampling,
            seed=5,
            max_tokens=300,
            draft=draft,
        )
        replies.append(await builtin_engine.generate(request).finished())
    assert replies[0].tokens == replies[1].tokens
    assert replies[0].accepted > 0
    text = await builtin_engine.decode(replies[0].tokens)
    (call,) = builtin_engine.reader(tools).feed(text)
    assert isinstance(call, ToolCall)
    assert call.name == "edit"
    jsonschema.validate(json.loads(call.arguments), parameters)


def test_control_tokens_without_text_are_not_missed() -> None:
    reply = 'commentary to=functions.now json{"a": 1}'
    assert read_calls(reply, HARMONY, DEFINED) == (ToolCall(name="now", arguments='{"a": 1}'),)


def test_an_object_that_names_no_tool_is_no_call() -> None:
    reply = '{"name": "Ada", "parameters": {}}'
    assert read_calls(reply, LLAMA, DEFINED) == ()
    assert read_calls(reply.replace("Ada", "now"), LLAMA, DEFINED)


@pytest.mark.parametrize("form", [MISTRAL_ARGS, HARMONY])
def test_a_name_that_the_form_cannot_write_is_refused(form: Form) -> None:
    tools = [{"type": "function", "function": {"name": "a.b"}}]
    with pytest.raises(RequestError, match=r"'a\.b' cannot be written"):
        required(tools, form)
