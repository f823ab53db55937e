"""Whether replies are what their schemas ask for, and the same with drafting and without."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from engine import (
    EngineClient,
    EngineError,
    Finished,
    GenerateRequest,
    RenderedPrompt,
    ReplyFormat,
    Sampling,
)
from sidecar.jobs.reply_schemas import Schema

# Longer than any of the schemas lets a reply become.
MAX_TOKENS = 1536
SAMPLED = Sampling(temperature=1.0)

Validate = Callable[[Any, Schema], bool]


class SchemaFigures(Struct, frozen=True, kw_only=True):
    """schemas: how many there were. schemas_valid: replies that satisfy theirs. schemas_equal:
    replies that are the same, token for token, without drafts. tokens, accepted, rounds: of all
    drafted replies together. wrong: what was, for a reader."""

    schemas: int
    schemas_valid: int
    schemas_equal: int
    tokens: int
    accepted: int
    rounds: int
    wrong: tuple[str, ...]


def jsonschema_validate() -> Validate:
    """The reference to check against. Raises EngineError where jsonschema is not installed."""
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        raise EngineError("jsonschema is missing: pip install 'pillion[dev]'") from None

    kind = jsonschema.Draft202012Validator
    formats = jsonschema.FormatChecker(())
    formats.checkers = kind.FORMAT_CHECKER.checkers | {"date": (_is_date, ())}

    def validate(reply: Any, schema: Schema) -> bool:
        return bool(kind(schema, format_checker=formats).is_valid(reply))

    return validate


def _is_date(value: Any) -> bool:
    """RFC 3339's full-date. Python knows no year 0, which is a leap year like 2000."""
    if not isinstance(value, str):
        return True
    with contextlib.suppress(ValueError):
        datetime.date.fromisoformat(re.sub("^0000", "2000", value))
        return len(value) == len("2000-01-01")
    return False


async def schema_figures(
    client: EngineClient, schemas: Sequence[Schema], validate: Validate
) -> SchemaFigures:
    """Ask for a reply to each schema twice, with drafting and without, every other one sampled."""
    wrong, valid, equal, drafted = [], 0, 0, []
    for number, schema in enumerate(schemas):
        request = await _request(client, number, schema)
        reply = await client.generate(request).finished()
        plain = msgspec.structs.replace(request, id=client.new_id("schema"), draft=False)
        serial = await client.generate(plain).finished()
        problem = await _problem(client, reply, schema, validate)
        same = reply.tokens == serial.tokens
        valid += not problem
        equal += same
        drafted.append(reply)
        if problem or not same:
            wrong.append(f"schema {number}: {problem or 'drafting changed the reply'}")
    return SchemaFigures(
        schemas=len(schemas),
        schemas_valid=valid,
        schemas_equal=equal,
        tokens=sum(len(reply.tokens) for reply in drafted),
        accepted=sum(reply.accepted for reply in drafted),
        rounds=sum(reply.rounds for reply in drafted),
        wrong=tuple(wrong),
    )


async def _request(client: EngineClient, number: int, schema: Schema) -> GenerateRequest:
    known = ", ".join(schema.get("properties", {})) or "a value"
    prompt: RenderedPrompt = await client.chat(
        [{"role": "user", "content": f"Write JSON with {known}."}],
        reply=ReplyFormat(schema=msgspec.json.encode(schema).decode()),
    )
    return GenerateRequest(
        id=client.new_id("schema"),
        prompt=prompt.tokens,
        grammar=prompt.grammar,
        sampling=SAMPLED if number % 2 else Sampling(),
        seed=number,
        max_tokens=MAX_TOKENS,
    )


async def _problem(
    client: EngineClient, reply: Finished, schema: Schema, validate: Validate
) -> str:
    text = await client.decode(reply.tokens)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return f"{reply.finish_reason}: {error}: {text[:200]}"
    return "" if validate(value, schema) else f"does not satisfy it: {text[:200]}"
