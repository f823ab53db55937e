"""What is said to an OpenAI-compatible server, and what its events mean. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from engine import GenerateRequest, Piece, Reasoned, ReplyFormat, Said, ToolCall
from sidecar.upstream.prompt import ChatPrompt, GapPrompt, Mode, RawPrompt, marks_of, trimmed


class Asked(Struct, frozen=True):
    """A body, and below which of the two addresses it goes."""

    path: str
    body: dict[str, Any]
    below_root: bool = False


def asked(request: GenerateRequest, prompt: Any, model: str, mode: Mode) -> Asked:
    """mode: how gaps are filled."""
    if isinstance(prompt, ChatPrompt):
        return Asked("/chat/completions", _chat(request, prompt, model))
    if isinstance(prompt, RawPrompt):
        text: Any = list(prompt.tokens) or prompt.text
        return Asked("/completions", _raw(request, model, text))
    return _gap(request, trimmed(prompt), model, mode)


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


def _chat(request: GenerateRequest, prompt: ChatPrompt, model: str) -> dict[str, Any]:
    body = _common(request, model) | {"messages": _messages(prompt.messages)}
    if prompt.tools:
        body["tools"] = prompt.tools
    if prompt.template:
        body["chat_template_kwargs"] = prompt.template
    if request.session:
        body["prompt_cache_key"] = request.session
    if request.grammar is not None:
        body |= _held_to(msgspec.json.decode(request.grammar.text, type=ReplyFormat))
    return body


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
        schema = msgspec.json.decode(reply.schema)
        named = {"name": "reply", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    elif reply.tool is not None:
        body["tool_choice"] = {"type": "function", "function": {"name": reply.tool}}
    elif reply.calls:
        body["tool_choice"] = "required"
    if reply.calls and not reply.several:
        body["parallel_tool_calls"] = False
    return body


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


class Ending(Struct, frozen=True, kw_only=True):
    """What an upstream said of a reply; counts are None where it said none."""

    reason: str = "stop"
    stop_sequence: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0
    accepted: int = 0
    rejected: int = 0


class Listener:
    """Takes the events of one reply."""

    def __init__(self) -> None:
        self.ended = False
        self.ending = Ending()
        self._calls: dict[int, tuple[str, str]] = {}

    def hear(self, event: Any) -> list[Piece]:
        """What it adds to the reply. Raises TypeError, ValueError or KeyError for what is none."""
        if not isinstance(event, dict):
            raise TypeError("an event is no object")
        self._count(event.get("usage") or {})
        if "content" in event:
            return self._infill(event)
        choices = event.get("choices") or []
        return self._choice(choices[0]) if choices else []

    def _choice(self, choice: dict[str, Any]) -> list[Piece]:
        delta = choice.get("delta") or {}
        pieces: list[Piece] = []
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            pieces.append(Reasoned(str(thought)))
        if text := delta.get("content") or choice.get("text"):
            pieces.append(Said(str(text)))
        for part in delta.get("tool_calls") or ():
            pieces += self._call(part)
        # Some say nothing as null, some as "".
        if reason := choice.get("finish_reason"):
            pieces += self.calls()
            self._end(reason, choice.get("stop_reason"))
        return pieces

    def _infill(self, event: dict[str, Any]) -> list[Piece]:
        if event.get("stop") or event.get("stop_type"):
            usage = {"prompt_tokens": event.get("tokens_evaluated")}
            self._count(usage | {"completion_tokens": event.get("tokens_predicted")})
            self._end("length" if event.get("stop_type") == "limit" else "stop", None)
        text = str(event["content"])
        return [Said(text)] if text else []

    def _call(self, part: dict[str, Any]) -> list[Piece]:
        """A call is there when the next one begins."""
        index, function = int(part.get("index") or 0), part.get("function") or {}
        done = self.calls() if self._calls and index not in self._calls else []
        name, arguments = self._calls.get(index, ("", ""))
        more = function.get("arguments") or ""
        if not isinstance(more, str):
            more = msgspec.json.encode(more).decode()
        self._calls[index] = (name or str(function.get("name") or ""), arguments + more)
        return done

    def calls(self) -> list[Piece]:
        """The calls that were begun. One that is cut short or no JSON is text."""
        calls: list[Piece] = [
            ToolCall(name=name, arguments=arguments or "{}")
            if name and _is_object(arguments or "{}")
            else Said(f"{name}({arguments})")
            for _, (name, arguments) in sorted(self._calls.items())
        ]
        self._calls.clear()
        return calls

    def _end(self, reason: Any, stop: Any) -> None:
        self.ended = True
        self.ending = msgspec.structs.replace(
            self.ending,
            reason="length" if reason == "length" else "stop",
            stop_sequence=stop if isinstance(stop, str) else None,
        )

    def _count(self, usage: dict[str, Any]) -> None:
        prompt, completion = (
            usage.get(f"{name}_tokens_details") or {} for name in ("prompt", "completion")
        )
        counts = {
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "cached_tokens": prompt.get("cached_tokens"),
            "accepted": completion.get("accepted_prediction_tokens"),
            "rejected": completion.get("rejected_prediction_tokens"),
        }
        known = {name: int(count) for name, count in counts.items() if count is not None}
        self.ending = msgspec.structs.replace(self.ending, **known)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
