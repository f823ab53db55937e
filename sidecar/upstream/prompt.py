"""Prompts for an engine that takes text: what the jobs hand on as token ids is the text itself.

An id stands for up to five bytes. Few texts have longer tokens, so the budgets that jobs count in
tokens keep their meaning, and no prompt is taken for too long that is not: that is the upstream's
to say. Ids that a client sent as they are (of the upstream's vocabulary) are smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from engine import RequestError

_BYTES = 5
_BITS = 8 * _BYTES
_PACKED = 1 << 48
VOCABULARY = _PACKED + ((_BYTES + 1) << _BITS)
"""More than any id."""
_CHAT, _GAP = VOCABULARY - 1, VOCABULARY - 2
# Of a token of code, when a gap's surroundings are cut to a budget of them.
_BYTES_OF_CODE = 3


class ChatPrompt(Struct, frozen=True, kw_only=True, tag="chat"):
    """messages, tools: OpenAI-shaped. template: variables of the chat template. reasoning: whether
    the reply may begin with some."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    template: dict[str, Any] = {}
    reasoning: bool = True


class OtherFile(Struct, frozen=True, kw_only=True):
    """See `engine.ContextFile`; content is in hexadecimal digits."""

    path: str
    text: str
    content: str
    comment: str = "#"


class GapPrompt(Struct, frozen=True, kw_only=True, tag="gap"):
    """The text between `prefix` and `suffix`; for the rest see `engine.Codec.fill_in_middle`."""

    prefix: str
    suffix: str
    path: str | None = None
    limit: int | None = None
    project: str = ""
    context: list[OtherFile] = []
    context_limit: int = 0


class RawPrompt(Struct, frozen=True, kw_only=True):
    """Text to go on with, or ids of the upstream's own vocabulary."""

    text: str = ""
    tokens: tuple[int, ...] = ()


Prompt = ChatPrompt | GapPrompt | RawPrompt


def pack_text(text: str) -> list[int]:
    """Ids that stand for `text`."""
    data = text.encode("utf-8", "surrogatepass")
    chunks = (data[at : at + _BYTES] for at in range(0, len(data), _BYTES))
    return [_PACKED + (len(chunk) << _BITS) + int.from_bytes(chunk) for chunk in chunks]


def text_of(tokens: Sequence[int]) -> str:
    """What was packed; other ids have no text."""
    data = b"".join(
        (token & ((1 << _BITS) - 1)).to_bytes(_BYTES)[-((token - _PACKED) >> _BITS) :]
        for token in tokens
        if _PACKED < token < _GAP
    )
    return data.decode(errors="replace")


def pack(prompt: ChatPrompt | GapPrompt) -> tuple[int, ...]:
    """The whole prompt as ids."""
    kind = _CHAT if isinstance(prompt, ChatPrompt) else _GAP
    return (kind, *pack_text(msgspec.json.encode(prompt).decode()))


def unpack(tokens: Sequence[int]) -> Prompt:
    """The prompt that ids stand for. Raises RequestError for a mixture."""
    if tokens[0] in (_CHAT, _GAP):
        shape: Any = ChatPrompt if tokens[0] == _CHAT else GapPrompt
        prompt: Prompt = msgspec.json.decode(text_of(tokens), type=shape)
        return prompt
    packed = sum(token > _PACKED for token in tokens)
    if packed == len(tokens):
        return RawPrompt(text=text_of(tokens))
    if packed:
        raise RequestError("prompt: token ids and text cannot be mixed", field="prompt")
    return RawPrompt(tokens=tuple(tokens))


Mode = Literal["infill", "tokens", "suffix", "prefix"]
"""How an upstream fills gaps: llama.cpp's endpoint, its model's own control tokens in a raw prompt,
OpenAI's `suffix`, or not at all, so that it goes on behind what comes before."""

# By what the model's name has in it: before the prefix, before the suffix, before the gap.
_MARKS = {
    ("qwen2.5-coder", "qwen3-coder", "codeqwen", "starcoder2-instruct", "granite-code"): (
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
    ),
    ("starcoder", "smollm"): ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("deepseek-coder",): ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("codegemma",): ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
}


def marks_of(model: str) -> tuple[str, str, str] | None:
    """The control tokens with which a model fills gaps, as far as its name tells."""
    name = model.lower()
    for names, marks in _MARKS.items():
        if any(known in name for known in names):
            return marks
    return None


def trimmed(gap: GapPrompt) -> GapPrompt:
    """Within its limits, dropping what is farthest from the cursor: three quarters of them are for
    what comes before it."""
    if gap.limit is None:
        return gap
    room = gap.limit * _BYTES_OF_CODE
    suffix = gap.suffix[: max(room // 4, room - len(gap.prefix))]
    prefix = gap.prefix[-max(room - len(suffix), 1) :]
    files, left = list[OtherFile](), gap.context_limit * _BYTES_OF_CODE
    for file in gap.context:
        left -= len(file.text)
        if left < 0:
            break
        files.append(file)
    return msgspec.structs.replace(gap, prefix=prefix, suffix=suffix, context=files)
