"""Chat prompts: the text and ids that transformers makes, from what OpenAI clients send."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from templates_made import ALTERNATING, GLUED, GLUED_TOKENS, REASONING, SMOLLM2
from tokenizers_made import CodecFactory

from engine import ModelError, RequestError
from engine.builtin import TARGET
from engine.text.codec import TextCodec

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wetter für <Städte> & more",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {}}},
    },
}
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}},
}
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi\n\n  <b>你好</b> 😀"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "And?"},
]
TOOLS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "grey"}'},
    {"role": "assistant", "content": "Grey."},
    {"role": "user", "content": "Thanks"},
]
THOUGHT = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "two and two"},
]


@pytest.fixture(scope="module")
def transformers_tokenizer() -> Any:
    before = logging.getLogger("transformers").handlers[:]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(TARGET))
    yield tokenizer
    logging.getLogger("transformers").handlers[:] = before


@pytest.fixture(scope="module")
def codecs(codec: TextCodec, codec_with: CodecFactory) -> dict[str, TextCodec]:
    return {
        "builtin": codec,
        "smollm2": codec_with(SMOLLM2),
        "reasoning": codec_with(REASONING),
    }


@pytest.mark.parametrize(
    ("template", "messages", "tools", "variables"),
    [
        ("builtin", PLAIN, None, {}),
        ("builtin", TOOLS, [WEATHER], {}),
        ("builtin", [{"role": "system", "content": "S"}, *TOOLS], [WEATHER], {}),
        ("builtin", TOOLS[:2], [WEATHER], {"add_generation_prompt": False}),
        ("smollm2", PLAIN, None, {}),
        ("smollm2", PLAIN[1:], None, {}),
        ("reasoning", TOOLS, [WEATHER], {}),
        ("reasoning", TOOLS, [WEATHER], {"enable_thinking": False}),
        ("reasoning", THOUGHT, None, {}),
        ("reasoning", [*THOUGHT, *PLAIN[1:]], None, {"enable_thinking": True}),
    ],
)
def test_ids_equal_transformers(
    codecs: dict[str, TextCodec],
    transformers_tokenizer: Any,
    template: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: dict[str, Any],
) -> None:
    codec = codecs[template]
    source = {"builtin": None, "smollm2": SMOLLM2, "reasoning": REASONING}[template]
    rendered = transformers_tokenizer.apply_chat_template(
        messages,
        tools=tools,
        chat_template=source,
        tokenize=False,
        **({"add_generation_prompt": True} | variables),
    )
    tokens = codec.chat(messages, tools=tools, template=variables).tokens
    assert codec.vocabulary.tokenizer.decode(tokens, skip_special_tokens=False) == rendered
    expected = codec.vocabulary.tokenizer.encode(rendered, add_special_tokens=False).ids
    assert list(tokens) == expected


def as_text(codec: TextCodec, messages: Any, **arguments: Any) -> str:
    tokens = codec.chat(messages, **arguments).tokens
    text: str = codec.vocabulary.tokenizer.decode(tokens, skip_special_tokens=False)
    return text


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, "a"),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            "a\nb",
        ),
        ({"role": "user", "content": ["a", "b"]}, "a\nb"),
        ({"role": "user", "content": None}, ""),
        ({"role": "user"}, ""),
    ],
)
def test_content_as_clients_send_it(codec: TextCodec, sent: dict[str, Any], meant: str) -> None:
    assert codec.chat([sent]) == codec.chat([{"role": "user", "content": meant}])


def test_arguments_as_json_text_equal_an_object(codec: TextCodec) -> None:
    function = CALL["function"]
    sent = CALL | {"function": function | {"arguments": json.dumps(function["arguments"])}}
    with_text = [TOOLS[0], {"role": "assistant", "content": None, "tool_calls": [sent]}]
    with_object = [TOOLS[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    assert codec.chat(with_text) == codec.chat(with_object)
    assert "<parameter=city>\nZürich\n</parameter>" in as_text(codec, with_text)
    nothing = CALL | {"function": {"name": "weather", "arguments": ""}}
    assert "<function=weather>\n</function>" in as_text(
        codec, [TOOLS[0], {"role": "assistant", "tool_calls": [nothing]}]
    )


def test_developer_is_system_where_the_template_does_not_know_it(codec: TextCodec) -> None:
    developer = codec.chat([{"role": "developer", "content": "S"}, TOOLS[0]])
    assert developer == codec.chat([{"role": "system", "content": "S"}, TOOLS[0]])


def test_a_tool_without_parameters_has_none(codec: TextCodec) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    assert "now()" in as_text(codec, [TOOLS[0]], tools=[tool])


def test_reasoning_under_any_name(codecs: dict[str, TextCodec]) -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        messages = [THOUGHT[0], {"role": "assistant", "content": "4", name: "two and two"}]
        assert "<think>\ntwo and two\n</think>\n\n4" in as_text(codecs["reasoning"], messages)


BAD: list[tuple[Any, str]] = [
    ([], "messages"),
    (["text"], "messages[0]"),
    ([{"content": "a"}], "messages[0].role"),
    ([PLAIN[0], {"role": "end", "content": "a"}], "messages[1].role"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": {"text": "a"}}], "messages[0].content"),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        "messages[0].content",
    ),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
    ([{"role": "user", "content": [7]}], "messages[0].content"),
    ([{"role": "user", "content": "a\ud800"}], "messages[0].content"),
    ([{"role": "user", "content": "a", "name": "\udfff"}], "messages[0].name"),
    ([{"role": "user", "content": "a", "x": {1, 2}}], "messages[0].x"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [3]}], "messages[0].tool_calls[0].function"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    *(
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}],
            "messages[0].tool_calls[0].function.arguments",
        )
        for text in ([1], 3)
    ),
]


@pytest.mark.parametrize(("messages", "field"), BAD)
def test_bad_messages_are_refused_by_name(codec: TextCodec, messages: Any, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        codec.chat(messages)
    assert refused.value.field == field
    assert field in refused.value.message
    refused.value.message.encode()


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([{}], "tools[0].function.name"),
        ([WEATHER, {"function": {"name": 3}}], "tools[1].function.name"),
        ([{"function": {"name": "f", "parameters": [1]}}], "tools[0].function.parameters"),
        ([{"function": {"name": "f", "description": "\ud83d"}}], "tools[0].function.description"),
    ],
)
def test_bad_tools_are_refused_by_name(codec: TextCodec, tools: Any, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        codec.chat([TOOLS[0]], tools=tools)
    assert refused.value.field == field


@pytest.mark.parametrize("variables", [{"messages": []}, {"tools": []}, {"x": "\ud800"}])
def test_template_variables_cannot_replace_the_request(
    codec: TextCodec, variables: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as refused:
        codec.chat([TOOLS[0]], template=variables)
    assert refused.value.field is not None
    assert refused.value.field.startswith("chat_template_kwargs")


def test_a_templates_refusal_is_the_callers_error(codec_with: CodecFactory) -> None:
    alternating = codec_with(ALTERNATING, bos_token="<|endoftext|>")
    texts = (("user", "a"), ("assistant", "<|im_end|>"), ("assistant", "b"))
    hostile = [{"role": role, "content": text} for role, text in texts]
    with pytest.raises(RequestError) as refused:
        alternating.chat(hostile)
    assert "must alternate user/assistant, after <|im_end|>" in refused.value.message
    assert refused.value.field == "messages"
    failing = codec_with("{{ messages[0].content + 1 }}")
    with pytest.raises(RequestError, match="refuses these messages: can only concatenate"):
        failing.chat([TOOLS[0]])


def test_a_template_cannot_reach_into_python(codec_with: CodecFactory) -> None:
    escaping = codec_with("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}")
    with pytest.raises(RequestError, match="unsafe"):
        escaping.chat([TOOLS[0]])


def test_special_tokens_that_a_template_writes_by_name(codec_with: CodecFactory) -> None:
    codec = codec_with(ALTERNATING, bos_token={"content": "<|endoftext|>"})
    tokens = codec.chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert tokens.tokens[0] == 0
    assert tokens.tokens[-1] == 2


def test_glued_control_tokens_are_recognised(codec_with: CodecFactory) -> None:
    codec = codec_with(GLUED, tokenizer=with_tokens(*GLUED_TOKENS))
    system, user, assistant, tool = codec.vocabulary.find(*GLUED_TOKENS)
    messages = [*PLAIN[:1], TOOLS[0], *TOOLS[3:4], {"role": "tool", "content": "t"}]
    tokens = codec.chat(messages, tools=[WEATHER]).tokens
    marks = [token for token in tokens if token in codec.control_ids]
    assert marks == [system, 2, user, 2, assistant, 2, tool, 2, assistant]
    rendered = codec.vocabulary.tokenizer.decode(tokens, skip_special_tokens=False)
    assert list(tokens) == codec.vocabulary.tokenizer.encode(rendered).ids


def with_tokens(*texts: str) -> str:
    """The built-in tokenizer.json with more special tokens."""
    data = json.loads((TARGET / "tokenizer.json").read_text())
    template = data["added_tokens"][0]
    data["added_tokens"] += [
        template | {"id": 4096 + index, "content": text} for index, text in enumerate(texts)
    ]
    return json.dumps(data)


def test_where_a_template_is_found(codec_with: CodecFactory) -> None:
    named = [
        {"name": "default", "template": "plain{{ messages[0].content }}"},
        {"name": "tool_use", "template": "tools{{ messages[0].content }}"},
    ]
    both = codec_with(named)
    assert as_text(both, [TOOLS[0]]) == "plainWeather?"
    assert as_text(both, [TOOLS[0]], tools=[WEATHER]) == "toolsWeather?"
    beside = codec_with(named, files={"chat_template.jinja": "file"})
    assert as_text(beside, [TOOLS[0]]) == "file"
    processor = codec_with([], files={"chat_template.json": {"chat_template": "processor"}})
    assert as_text(processor, [TOOLS[0]]) == "processor"
    none = codec_with([])
    assert not none.has_chat_template
    with pytest.raises(RequestError, match="no chat template") as refused:
        none.chat([TOOLS[0]])
    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda make: make("{% if %}"), "chat_template: line 1"),
        (lambda make: make(tokenizer="{"), "tokenizer.json"),
        (lambda make: make(tokenizer='{"model": {"type": "x"}}'), "tokenizer.json"),
        (lambda make: make(files={"tokenizer_config.json": "[]"}), "tokenizer_config.json"),
        (lambda make: make(files={"config.json": "{"}).eos_token_ids, "config.json"),
    ],
)
def test_damaged_files_are_named(
    codec_with: CodecFactory, build: Callable[[CodecFactory], object], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        build(codec_with)


def test_the_codec_imports_neither_transformers_nor_mlx() -> None:
    import subprocess

    program = (
        "import sys; from engine.builtin import TARGET; from engine.text.codec import TextCodec; "
        "TextCodec(TARGET).chat([{'role': 'user', 'content': 'a'}]); "
        "sys.exit(any(name in sys.modules for name in ('transformers', 'mlx', 'mlx_lm')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
