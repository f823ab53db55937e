"""Rendering of Hugging Face chat templates, with sealed control tokens.

The environment is the one that `transformers` documents for chat templates (sandbox, trimmed
blocks, loop controls, `tojson`, `raise_exception`, `strftime_now`, `{% generation %}`), so a
template renders here as it does there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelError, RequestError
from engine.text.seals import Seals


class GenerationTag(Extension):
    """`{% generation %}` marks a reply for training; for a prompt its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, leaves HTML characters and non-ASCII text alone."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _probe(*roles: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": "a"} for role in roles]


PROBE_TOOL = {
    "type": "function",
    "function": {"name": "a", "description": "a", "parameters": {"type": "object"}},
}
PROBES: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    (_probe("user"), None),
    (_probe("user", "assistant", "user"), None),
    (_probe("system", "user", "assistant", "user"), None),
    (_probe("system", "user", "assistant", "tool"), [PROBE_TOOL]),
)


class ChatTemplate:
    """One chat template of a model.

    source: Jinja text. where: the file and key it came from, for errors. variables: what it may
    read besides the messages (``bos_token``...). seals: of the model's control tokens.
    """

    def __init__(
        self, source: str, *, where: str, variables: Mapping[str, str], seals: Seals
    ) -> None:
        self.source = source
        self._seals = seals
        self._variables = {name: seals.seal(text) for name, text in variables.items()}
        self.knows_developer = "developer" in source
        environment = _environment()
        try:
            tree = environment.parse(source)
            for literal in tree.find_all(nodes.TemplateData):
                literal.data = seals.seal(literal.data)
            for constant in tree.find_all(nodes.Const):
                if isinstance(constant.value, str):
                    constant.value = seals.seal(constant.value)
            self._template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise ModelError(f"{where}: line {error.lineno}: {error.message}") from None
        self._glued = self._find_glued()
        self.shows_late_system = self._shows_late_system()

    def _shows_late_system(self) -> bool:
        """Whether a system message behind the first message is in the prompt."""
        mark = "late"
        late = [
            *_probe("system"),
            {"role": "system", "content": mark},
            *_probe("user", "assistant"),
        ]
        try:
            text = self._render([*late, late[1], *_probe("user")], None, {}, reply=True)
        except Exception:
            return False
        return text.count(mark) == 2

    def _find_glued(self) -> frozenset[str]:
        """Control tokens that the template glues together (``'<|' + role + '|>'``), so that no
        literal spells them. They are recognised by their text, so callers must not write it."""
        glued: set[str] = set()
        for messages, tools in PROBES:
            try:
                glued |= self._seals.spelled_in(self._render(messages, tools, {}, reply=True))
            except Exception:
                # A template may refuse a role; then it glues nothing for it either.
                continue
        return frozenset(glued)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        reply: bool,
    ) -> str:
        """The sealed prompt. reply: end it with the opening of an assistant message.

        Raises RequestError naming ``messages`` with the template's own words.
        """
        if self._glued:
            messages = [self._fenced(message) | {"role": message["role"]} for message in messages]
            tools = self._fenced(tools)
        try:
            text = self._render(messages, tools, variables, reply=reply)
        except RecursionError:
            raise RequestError("messages are nested too deeply", field="messages") from None
        except Exception as error:
            # Template code is the model's: whatever it raises, these messages do not fit it.
            reason = self._seals.unseal(str(error)) or type(error).__name__
            raise RequestError(
                f"the model's chat template refuses these messages: {reason}", field="messages"
            ) from None
        for token in self._glued:
            text = text.replace(token, self._seals.seal(token))
        return text.replace(self._seals.splice, "")

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        reply: bool,
    ) -> str:
        given = {"add_generation_prompt": reply, **self._variables, **variables}
        return self._template.render(messages=messages, tools=tools, documents=None, **given)

    def _fenced(self, value: Any) -> Any:
        """Caller's data with a splice wherever its text could be part of a glued token."""
        if isinstance(value, str):
            splice = self._seals.splice
            for token in self._glued:
                value = value.replace(token, token[0] + splice + token[1:])
            bare = value.strip()
            if any(_may_join(bare, token) for token in self._glued):
                return f"{splice}{value}{splice}"
            return value
        if isinstance(value, Mapping):
            return {self._fenced(key): self._fenced(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._fenced(item) for item in value]
        return value


def _may_join(text: str, token: str) -> bool:
    """Whether `text` with something before or after it could spell `token`."""
    if not text:
        return False
    cuts = range(1, len(token))
    return any(text.endswith(token[:cut]) or text.startswith(token[cut:]) for cut in cuts) or (
        text in token and not text.isidentifier()
    )
