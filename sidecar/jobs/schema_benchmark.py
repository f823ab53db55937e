"""Whether replies are what their schemas ask for, and the same with drafting and without."""

from __future__ import annotations

import asyncio
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
# What a free reply may take; hardly any of them ends as JSON.
FREE_TOKENS = 48
# Requests at a time: one reply is decoded while the next schema is compiled.
AT_ONCE = 4
SAMPLED = Sampling(temperature=1.0)

Validate = Callable[[Any, Schema], bool]


class SchemaFigures(Struct, frozen=True, kw_only=True):
    """schemas: how many there were. schemas_valid: replies that satisfy theirs. schemas_equal:
    replies that are the same, token for token, without drafts. schemas_valid_unheld: replies to the
    same prompts that satisfy the schema though nothing holds them to it, which is what servers
    give that ignore ``response_format``. tokens, accepted, rounds: of all drafted replies together.
    wrong: what was, for a reader."""

    schemas: int
    schemas_valid: int
    schemas_equal: int
    schemas_valid_unheld: int
    tokens: int
    accepted: int
    rounds: int
    wrong: tuple[str, ...]


class _Case(Struct, frozen=True, kw_only=True):
    """What came of one schema."""

    drafted: Finished
    problem: str
    equal: bool
    unheld: bool


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
    client: EngineClient,
    schemas: Sequence[Schema],
    validate: Validate,
    advance: Callable[[], None] = lambda: None,
) -> SchemaFigures:
    """Ask for a reply to each schema three times: with drafting, without, and without the schema;
    every other one is sampled. advance: hears of each schema."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def case(number: int, schema: Schema) -> _Case:
        async with turns:
            made = await _case(client, number, schema, validate)
            advance()
            return made

    cases = await asyncio.gather(*(case(number, schema) for number, schema in enumerate(schemas)))
    return SchemaFigures(
        schemas=len(schemas),
        schemas_valid=sum(not case.problem for case in cases),
        schemas_equal=sum(case.equal for case in cases),
        schemas_valid_unheld=sum(case.unheld for case in cases),
        tokens=sum(len(case.drafted.tokens) for case in cases),
        accepted=sum(case.drafted.accepted for case in cases),
        rounds=sum(case.drafted.rounds for case in cases),
        wrong=tuple(
            f"schema {number}: {case.problem or 'drafting changed the reply'}"
            for number, case in enumerate(cases)
            if case.problem or not case.equal
        ),
    )


async def _case(client: EngineClient, number: int, schema: Schema, validate: Validate) -> _Case:
    held = await _request(client, number, schema)
    plain = msgspec.structs.replace(held, id=client.new_id("schema"), draft=False)
    unheld = msgspec.structs.replace(
        held, id=client.new_id("schema"), grammar=None, max_tokens=FREE_TOKENS
    )
    drafted, serial, free = [
        await client.generate(request).finished() for request in (held, plain, unheld)
    ]
    return _Case(
        drafted=drafted,
        problem=await _problem(client, drafted, schema, validate),
        equal=drafted.tokens == serial.tokens,
        unheld=not await _problem(client, free, schema, validate),
    )


async def _request(client: EngineClient, number: int, schema: Schema) -> GenerateRequest:
    # What schemas share comes first, so that a prefix cache has it.
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
