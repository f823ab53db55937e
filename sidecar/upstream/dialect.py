"""What is said to an OpenAI-compatible server. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from engine import GenerateRequest, ReplyFormat
from sidecar.upstream.forced_call import call_by_schema
from sidecar.upstream.prompt import (
    ChatPrompt,
    GapPrompt,
    Mode,
    RawPrompt,
    marks_of,
    text_of,
    trimmed,
)
from sidecar.upstream.ways import Ways


class Asked(Struct, frozen=True):
    """A body, and below which of the two addresses it goes."""

    path: str
    body: dict[str, Any]
    below_root: bool = False


def asked(request: GenerateRequest, prompt: Any, model: str, ways: Ways) -> Asked:
    """The body that asks for `request`."""
    if isinstance(prompt, ChatPrompt):
        return Asked("/chat/completions", _chat(request, prompt, model, ways))
    if isinstance(prompt, RawPrompt):
        text: Any = list(prompt.tokens) or prompt.text
        return Asked("/completions", _raw(request, model, text))
    return _gap(request, trimmed(prompt), model, ways.gaps)


def _common(request: GenerateRequest, model: str) -> dict[str, Any]:
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if request.seed is not None:
        # Several servers take no more than 32 or 63 bits.
        body["seed"] = request.seed % 2**31
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    # Not every server knows these, so only what was asked for is said.
    for name, nothing in (
        ("top_k", 0),
        ("min_p", 0.0),
        ("repetition_penalty", 1.0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
    ):
        if (value := getattr(sampling, name)) != nothing:
            body[name] = value
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if request.ignore_eos:
        body["ignore_eos"] = True
    if not request.draft:
        # Another Pillion heeds it.
        body["draft"] = False
    return body


def _chat(request: GenerateRequest, prompt: ChatPrompt, model: str, ways: Ways) -> dict[str, Any]:
    body = _common(request, model)
    if prompt.template:
        body["chat_template_kwargs"] = prompt.template
    if request.session:
        body["prompt_cache_key"] = request.session
    if request.prediction and ways.prediction:
        body["prediction"] = {"type": "content", "content": text_of(request.prediction)}
    if ways.calls == "schema" and (reply := forced_call(request)) is not None:
        told, schema = call_by_schema(prompt.tools, reply)
        messages = [{"role": "system", "content": told}, *prompt.messages]
        return body | {"messages": _messages(messages)} | _schema(schema)
    body["messages"] = _messages(prompt.messages)
    if prompt.tools:
        body["tools"] = prompt.tools
    if request.grammar is not None:
        body |= _held_to(msgspec.json.decode(request.grammar.text, type=ReplyFormat))
    return body


def forced_call(request: GenerateRequest) -> ReplyFormat | None:
    """What a chat asks for whose reply has to be a call; None if it may be anything else."""
    if request.grammar is None:
        return None
    reply = msgspec.json.decode(request.grammar.text, type=ReplyFormat)
    return reply if reply.calls and reply.schema is None else None


def _messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As servers with any model's template take them. Most templates refuse or leave out a
    developer's messages, and a system's second one; OpenAI's models take either for both."""
    shaped = [_message(message) for message in messages]
    roles = [message["role"] for message in shaped]
    lead = next((index for index, role in enumerate(roles) if role != "system"), len(roles))
    if lead > 1:
        content = "\n\n".join(_text(message.get("content")) for message in shaped[:lead])
        shaped[:lead] = [{"role": "system", "content": content}]
    return shaped


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else []
    return content if isinstance(content, str) else "\n".join(part["text"] for part in parts)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """With the arguments of calls as JSON text, which most servers insist on."""
    if message["role"] == "developer":
        message = message | {"role": "system"}
    calls = message.get("tool_calls")
    return message | {"tool_calls": [_with_text(call) for call in calls]} if calls else message


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    return call | {"function": function | {"arguments": arguments}}


def _held_to(reply: ReplyFormat) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if reply.schema is not None:
        body |= _schema(msgspec.json.decode(reply.schema))
    elif reply.tool is not None:
        body["tool_choice"] = {"type": "function", "function": {"name": reply.tool}}
    elif reply.calls:
        body["tool_choice"] = "required"
    if reply.calls and not reply.several:
        body["parallel_tool_calls"] = False
    return body


def _schema(schema: Any) -> dict[str, Any]:
    named = {"name": "reply", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _raw(request: GenerateRequest, model: str, prompt: Any) -> dict[str, Any]:
    return _common(request, model) | {"prompt": prompt}


def _gap(request: GenerateRequest, gap: GapPrompt, model: str, mode: Mode) -> Asked:
    if mode == "infill":
        body = _common(request, model)
        body["n_predict"] = body.pop("max_tokens", -1)
        extra = [{"filename": file.path, "text": file.text} for file in gap.context]
        body |= {"input_prefix": gap.prefix, "input_suffix": gap.suffix, "prompt": ""}
        return Asked("/infill", body | {"input_extra": extra}, below_root=True)
    ahead = "".join(f"{file.comment} {file.path}\n{file.text}\n" for file in gap.context)
    if mode == "suffix":
        body = _raw(request, model, ahead + gap.prefix) | {"suffix": gap.suffix}
    elif mode == "tokens" and (marks := marks_of(model)) is not None:
        before, after, middle = marks
        text = f"{before}{ahead}{gap.prefix}{after}{gap.suffix}{middle}"
        body = _raw(request, model, text)
    else:
        body = _raw(request, model, ahead + gap.prefix)
    return Asked("/completions", body)
