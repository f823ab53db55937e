"""Replies of the built-in model to many schemas: valid, and the same with drafting and without."""

from __future__ import annotations

import jsonschema
import pytest

from engine import EngineClient
from sidecar.jobs.reply_schemas import COUNT, WRITTEN, made, schemas
from sidecar.jobs.schema_benchmark import jsonschema_validate, schema_figures

# Short ones, each with something of its own.
FEW = (0, 2, 4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 19, 21)


def test_there_are_as_many_schemas_as_are_counted_and_they_are_schemas() -> None:
    every = schemas()
    assert len(every) == COUNT == 200
    assert every == schemas()
    assert made(3) != made(4)
    for schema in every:
        jsonschema.Draft202012Validator.check_schema(schema)
    text = str(every)
    for keyword in ("$ref", "anyOf", "oneOf", "allOf", "enum", "pattern", "format", "prefixItems"):
        assert f"'{keyword}'" in text


def test_the_reference_tells_right_from_wrong() -> None:
    validate = jsonschema_validate()
    assert validate({"a": 3}, WRITTEN[19])
    assert not validate({"a": 3.5}, WRITTEN[19])
    date = {"type": "string", "format": "date"}
    assert validate("0000-02-29", date)
    for wrong in ("2026-13-01", "2026-02-29", "20260101", 5):
        assert not validate(wrong, date)


async def test_replies_to_a_few_schemas(builtin_engine: EngineClient) -> None:
    some = [WRITTEN[number] for number in FEW]
    figures = await schema_figures(builtin_engine, some, jsonschema_validate())
    assert figures.wrong == ()
    assert figures.schemas == figures.schemas_valid == figures.schemas_equal == len(FEW)
    # Nothing but luck makes the same model satisfy one of them by itself.
    assert figures.schemas_valid_unheld < len(FEW) / 2
    # What the schemas force is drafted, also where nothing was ever written before.
    assert figures.accepted > figures.rounds / 4


@pytest.mark.slow
async def test_replies_to_every_schema(builtin_engine: EngineClient) -> None:
    figures = await schema_figures(builtin_engine, schemas(), jsonschema_validate())
    assert figures.wrong == ()
    assert figures.schemas == figures.schemas_valid == figures.schemas_equal == COUNT


async def test_a_reply_that_is_wrong_is_counted_and_shown(builtin_engine: EngineClient) -> None:
    figures = await schema_figures(builtin_engine, [{"const": 1}], lambda _reply, _schema: False)
    assert (figures.schemas, figures.schemas_valid, figures.schemas_equal) == (1, 0, 1)
    assert figures.schemas_valid_unheld == 0
    assert figures.wrong == ("schema 0: does not satisfy it: 1",)
