"""Text to token ids and back, for any model folder with a fast tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.client import Detokenizer, Message
from engine.errors import ModelError, RequestError
from engine.json_file import read_json
from engine.messages import ContextFile, Grammar, RenderedPrompt, ReplyFormat
from engine.text.chat_template import ChatTemplate
from engine.text.context_layout import ContextLayout
from engine.text.conversation import (
    alternating,
    conversation,
    plain,
    tool_definitions,
    with_short_ids,
    without_late_system,
)
from engine.text.detokenizer import ByteStreamDetokenizer, WindowDetokenizer
from engine.text.fill_in_middle import FillInMiddle
from engine.text.prompt_memory import PromptMemory
from engine.text.reply_grammar import reply_grammar
from engine.text.reply_reader import REASONING, Layout, ReplyReader, layout_of
from engine.text.tool_calls import MISTRAL, MISTRAL_ARGS, MISTRAL_ID, form_of
from engine.text.vocabulary import END_TOKENS, Vocabulary

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class TextCodec:
    """Implements `engine.client.Codec`. Thread-safe: no result depends on earlier calls.

    path: folder with tokenizer.json, tokenizer_config.json and, where there are, config.json,
    generation_config.json and chat_template.jinja. Raises ModelError naming file and key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settings = read_json(path / "tokenizer_config.json")
        source = _tokenizer_source(path)
        try:
            self.vocabulary = Vocabulary(source)
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise ModelError(f"{path / 'tokenizer.json'}: {error}") from error
        except Exception as error:
            # The tokenizers library raises bare exceptions for files that it does not understand.
            raise ModelError(f"{path / 'tokenizer.json'}: {error}") from error
        self._seals = self.vocabulary.seals
        self._prompts = PromptMemory(
            self.vocabulary.encode_sealed, self.vocabulary.control_ids, self._seals.spans
        )
        self._infill = FillInMiddle(self.vocabulary)
        self._context = ContextLayout(self.vocabulary, fills=bool(self._infill.markers))
        self._templates = {
            name: ChatTemplate(
                text, where=f"{path}: chat_template", variables=self._variables, seals=self._seals
            )
            for name, text in _chat_templates(path, self._settings).items()
        }
        self._layouts = {
            name: layout_of(template.source, form_of(template.source), self.vocabulary.controls)
            for name, template in self._templates.items()
        }

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows; a model's logits may be padded beyond it."""
        return self.vocabulary.size

    @property
    def has_chat_template(self) -> bool:
        return bool(self._templates)

    @property
    def has_fim(self) -> bool:
        return bool(self._infill.markers)

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that only a template, or the model itself, may write."""
        return self.vocabulary.control_ids

    @functools.cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a reply: those the model's files name, and the well-known turn ends."""
        ids = set(self.vocabulary.find(*END_TOKENS))
        config = read_json(self._path / "config.json")
        generation = read_json(self._path / "generation_config.json")
        for values in (generation, config, config.get("text_config") or {}):
            named = values.get("eos_token_id")
            ids |= set(named if isinstance(named, list) else [named]) - {None}
        if "eos_token" in self._variables:
            ids |= set(self.vocabulary.find(self._variables["eos_token"]))
        return frozenset(ids)

    @functools.cached_property
    def _variables(self) -> dict[str, str]:
        """The tokenizer's named special tokens, which a template may write."""
        legacy = read_json(self._path / "special_tokens_map.json")
        found = {}
        for name in SPECIAL_NAMES:
            token = self._settings.get(name) or legacy.get(name)
            text = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(text, str):
                found[name] = text
        return found

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """See `Codec.encode`. With `control` the tokenizer also adds its own BOS, if it has one,
        unless the text spells it: this is a raw prompt, and models expect it there."""
        text = plain(text, "text")
        if not control:
            return self.vocabulary.encode_sealed(text)
        ids: list[int] = self.vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
        begin = self.vocabulary.begin
        return ids if tuple(ids[: len(begin)]) == begin else [*begin, *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`; turn, FIM, end, pad and mask tokens have none."""
        detokenizer = self.detokenizer()
        return "".join([*map(detokenizer.add, tokens), detokenizer.finish()])

    def detokenizer(self) -> Detokenizer:
        """See `Codec.detokenizer`. One for each sequence; it keeps what is not yet a character."""
        table = self.vocabulary.byte_table
        if table is None:
            return WindowDetokenizer(self._decode_plainly)
        return ByteStreamDetokenizer(table, strip=self.vocabulary.strips_first_space)

    def _decode_plainly(self, tokens: Sequence[int]) -> str:
        shown = [token for token in tokens if token not in self.vocabulary.silent_ids]
        text: str = self.vocabulary.tokenizer.decode(shown, skip_special_tokens=False)
        return text

    def control_spellings(self) -> dict[int, str]:
        """How each control token is spelled."""
        return {token: text for text, token in self.vocabulary.controls.items()}

    def token_bytes(self) -> list[bytes]:
        """UTF-8 bytes of each id, ``b""`` for every control token (also those with text)."""
        return self._token_bytes

    @functools.cached_property
    def _token_bytes(self) -> list[bytes]:
        table = self.vocabulary.byte_table
        if table is None:
            table = [self._decode_plainly([token]).encode() for token in range(self.vocab_size)]
        return [b"" if token in self.control_ids else text for token, text in enumerate(table)]

    def fill_in_middle(
        self,
        prefix: str,
        suffix: str,
        *,
        path: str | None = None,
        limit: int | None = None,
        project: str = "",
        context: Sequence[ContextFile] = (),
        context_limit: int = 0,
    ) -> RenderedPrompt:
        """See `Codec.fill_in_middle`. Without context, `path` is not put into the prompt: the
        built-in model was not trained with it, and a name in the wrong form costs more than it
        tells."""
        shown = self._context.layout(project, context, path or "", context_limit)
        return self._infill.prompt(plain(prefix, "prefix"), plain(suffix, "suffix"), limit, shown)

    def known_fill_in_middle(
        self,
        prefix: str,
        suffix: str,
        *,
        path: str | None = None,
        limit: int | None = None,
        project: str = "",
        context: Sequence[ContextFile] = (),
        context_limit: int = 0,
    ) -> RenderedPrompt | None:
        """What `fill_in_middle` returns, where all that has to be tokenised is the cursor's line,
        which takes tens of microseconds; else None."""
        shown = self._context.known_layout(project, context, path or "", context_limit)
        if shown is None:
            return None
        return self._infill.known_prompt(
            plain(prefix, "prefix"), plain(suffix, "suffix"), limit, shown
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        template: Mapping[str, Any] | None = None,
        reasoning: bool = True,
    ) -> RenderedPrompt:
        """See `Codec.chat`. The text of messages and tools never becomes a control token."""
        chosen = self._template_for(tools)
        turns = conversation(messages, developer=chosen.knows_developer)
        if not chosen.shows_late_system:
            turns = without_late_system(turns)
        if self._layout(tools).form in (MISTRAL, MISTRAL_ARGS, MISTRAL_ID):
            turns = with_short_ids(turns)
        defined = tool_definitions(tools)
        variables = plain(dict(template or {}), "chat_template_kwargs")
        if not reasoning:
            variables["enable_thinking"] = False
        for name in ("messages", "tools"):
            if name in variables:
                raise RequestError(
                    f"chat_template_kwargs must not set {name}", field="chat_template_kwargs"
                )

        def render(part: list[dict[str, Any]], reply: bool) -> str:
            return chosen.render(part, defined, variables, reply=reply)

        try:
            sealed = render(turns, True)
        except RequestError:
            joined = alternating(turns)
            if len(joined) == len(turns):
                raise
            turns, sealed = joined, render(joined, True)
        if not reasoning:
            sealed = self._without_open_reasoning(sealed)
        made = self._prompts.take(
            (chosen.source, defined, variables),
            turns,
            sealed,
            render,
            reasons=not self._reasoning_closed(sealed),
        )
        if not made.tokens:
            raise RequestError("the chat template rendered nothing", field="messages")
        boundaries = {made.ends[n - 1] for n in made.stable.values() if n}
        last = made.stable.get(len(turns))
        if made.whole and last:
            # Then the last message needs no end of its own.
            boundaries -= {made.ends[last - 1]}
        if made.whole:
            boundaries.add(len(made.tokens))
        return RenderedPrompt(
            tokens=tuple(made.tokens),
            boundaries=tuple(sorted(boundaries)),
            reasoning=self._open_reasoning(sealed),
        )

    def _open_reasoning(self, sealed: str) -> str:
        """The marker of the reasoning that a rendered prompt opened for the reply, if any."""
        bare = sealed.rstrip()
        opened = (opener for opener in REASONING if bare.endswith(self._seals.seal(opener)))
        return next(opened, "")

    def _reasoning_closed(self, sealed: str) -> bool:
        """Whether a rendered prompt leaves no reasoning to the reply."""
        bare = sealed.rstrip()
        return any(bare.endswith(self._seals.seal(closer)) for closer in REASONING.values())

    def _without_open_reasoning(self, sealed: str) -> str:
        """A rendered prompt, with the reasoning closed that it opened for the reply."""
        opener = self._open_reasoning(sealed)
        if not opener:
            return sealed
        return f"{sealed.rstrip()}\n\n{self._seals.seal(REASONING[opener])}\n\n"

    def grammar(
        self,
        reply: ReplyFormat,
        tools: Sequence[Message] | None = None,
        *,
        prompt: RenderedPrompt | None = None,
    ) -> Grammar:
        """See `Codec.grammar`."""
        if self.vocabulary.byte_table is None:
            raise RequestError(
                "response_format: the tokens of this model cannot be spelled out one by one, so "
                "its replies cannot be held to a grammar",
                field="response_format",
            )
        layout = self._layout(tools)
        opened = prompt.reasoning if prompt is not None else ""
        return reply_grammar(
            reply,
            tool_definitions(tools) or [],
            layout.form,
            self.vocabulary.controls,
            reasoning={opened: REASONING[opened]} if opened else layout.reasoning,
            opened=bool(opened),
        )

    def reader(self, tools: Sequence[Message] | None, *, reasoning: str = "") -> ReplyReader:
        """See `Codec.reader`."""
        defined = [tool.get("function", tool) for tool in tool_definitions(tools) or []]
        by_name = {tool["name"]: tool for tool in defined}
        return ReplyReader(self._layout(tools), by_name, reasoning)

    def _layout(self, tools: Sequence[Message] | None) -> Layout:
        template = self._template_for(tools)
        return next(self._layouts[name] for name, one in self._templates.items() if one is template)

    def _template_for(self, tools: Sequence[Message] | None) -> ChatTemplate:
        if not self._templates:
            raise RequestError(
                "this model has no chat template; use /v1/completions", field="messages"
            )
        if tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default") or next(iter(self._templates.values()))


def _tokenizer_source(path: Path) -> str:
    file = path / "tokenizer.json"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file}: {error}") from error
    # Only transformers can build a fast tokenizer from the older formats.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        source: str = tokenizer.backend_tokenizer.to_str()
    except Exception as error:
        raise ModelError(f"{path}: no tokenizer.json, and none could be made: {error}") from error
    return source


def _chat_templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Named templates; a file of its own takes precedence over tokenizer_config.json."""
    file = path / "chat_template.jinja"
    if file.exists():
        return {"default": file.read_text(encoding="utf-8")}
    found = read_json(path / "chat_template.json").get("chat_template") or settings.get(
        "chat_template"
    )
    if isinstance(found, str):
        return {"default": found}
    return {entry["name"]: entry["template"] for entry in found or []}
