"""The published document: complete, and what schemathesis makes of the door by it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from http_door import COMPLETIONS as CHAT
from http_door import HELLO, asgi_door, services_of, socket_door
from jsonschema import Draft202012Validator

from engine.testing import FakeEngine
from sidecar.config import Config
from sidecar.http.app import decoding_routes
from sidecar.http.limits import Limits
from sidecar.http.openapi import document
from sidecar.jobs.race.environments import PeerEnvironment, install, peer_environment

SCHEMATHESIS = PeerEnvironment(name="schemathesis", requirements=("schemathesis==4.32.5",))
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")


async def test_every_endpoint_that_decodes_is_described() -> None:
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        published: dict[str, Any] = (await client.get("/openapi.json")).json()
        for path, methods in published["paths"].items():
            if "get" in methods and "{" not in path:
                assert (await client.get(path)).status_code == 200
    assert published["openapi"] == "3.1.0"
    async with services_of(engine, Config(), loaded=False) as services:
        served = {route.path for route in decoding_routes(services, Limits())}
    assert served == {path for path, methods in published["paths"].items() if "post" in methods}


def test_its_schemas_have_short_names_and_bounds() -> None:
    schemas = document()["components"]["schemas"]
    # Two types of one name would get the names of their modules.
    assert all(name.isidentifier() for name in schemas)
    assert schemas["MessagesRequest"]["properties"]["max_tokens"] == {
        "type": "integer",
        "minimum": 1,
    }


CALLED = {"type": "function", "function": {"name": "f"}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    (CHAT, "ChatRequest", {"messages": HELLO, "top_logprobs": 2}),
    (CHAT, "ChatRequest", {"messages": HELLO, "tool_choice": "required"}),
    (CHAT, "ChatRequest", {"messages": HELLO, "modalities": ["audio"]}),
    (CHAT, "ChatRequest", {"messages": HELLO, "logit_bias": {"a": 1}}),
    (CHAT, "ChatRequest", {"messages": HELLO, "response_format": {"type": "json_schema"}}),
    (CHAT, "ChatRequest", {"messages": HELLO, "tools": [CALLED | {"function": {"name": ""}}]}),
    (CHAT, "ChatRequest", {"messages": IMAGE}),
    ("/v1/completions", "CompletionsRequest", {"prompt": "a", "echo": True, "logprobs": 1}),
    ("/v1/completions", "CompletionsRequest", {"prompt": ["a", 1]}),
    ("/v1/completions", "CompletionsRequest", {"prompt": [[-1]]}),
    ("/v1/completions", "CompletionsRequest", {"prompt": ["a"], "suffix": "b"}),
    (
        "/v1/messages",
        "MessagesRequest",
        {"messages": HELLO, "max_tokens": 1, "system": [{"type": "image"}]},
    ),
    (
        "/v1/messages",
        "MessagesRequest",
        {"messages": HELLO, "max_tokens": 1, "tool_choice": {"type": "any"}},
    ),
    ("/v1/responses", "ResponsesRequest", {"input": "a", "background": True}),
    ("/v1/responses", "ResponsesRequest", {"input": []}),
    ("/v1/responses", "ResponsesRequest", {"input": [{"type": "function_call"}]}),
    ("/infill", "InfillRequest", {"stream": True}),
    ("/tokenize", "TokenizeRequest", {}),
]


async def test_what_is_refused_is_outside_of_the_document() -> None:
    schemas = document()["components"]["schemas"]
    taken: list[tuple[str, str, dict[str, Any]]] = [
        (CHAT, "ChatRequest", {"messages": HELLO, "top_logprobs": 2, "logprobs": True}),
        (CHAT, "ChatRequest", {"messages": HELLO, "tool_choice": "required", "tools": [CALLED]}),
        ("/v1/completions", "CompletionsRequest", {"prompt": [[1, 2], "a"], "max_tokens": 1.0}),
        ("/v1/responses", "ResponsesRequest", {"input": [{"role": "user", "content": "a"}]}),
    ]
    async with asgi_door(FakeEngine()) as client:
        for path, name, body in [*REFUSED, *taken]:
            whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
            valid = Draft202012Validator(whole).is_valid(body)
            answer = await client.post(path, json=body)
            assert (answer.status_code == 200) is valid, (path, body, answer.text)
            assert valid is ((path, name, body) in taken)


async def test_fields_that_were_chosen_are_in_the_document() -> None:
    answers = document()["paths"]["/infill"]["post"]["responses"]["200"]["content"]
    schema = answers["application/json"]["schema"] | {"components": document()["components"]}
    asked = {"input_prefix": "a", "response_fields": ["content", "timings/cache_n", "nothing"]}
    flat = {"content": "ok", "timings/cache_n": 0}
    async with asgi_door(FakeEngine()) as client:
        one = (await client.post("/infill", json=asked)).json()
        several = (await client.post("/infill", json=asked | {"n_cmpl": 2})).json()
    assert one == flat
    assert several == [flat] * 2
    for answer in (one, several):
        Draft202012Validator(schema).validate(answer)


@pytest.mark.slow
def test_its_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema({"$defs": document()["components"]["schemas"]})


@pytest.fixture(scope="module")
def schemathesis(tmp_path_factory: pytest.TempPathFactory) -> str:
    return install(SCHEMATHESIS, tmp_path_factory.mktemp("peers")).program("schemathesis")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "phases", "examples"),
    [(1, "coverage,fuzzing", 10), (2, "fuzzing", 40), (3, "fuzzing", 40)],
)
async def test_schemathesis_finds_nothing(
    schemathesis: str, tmp_path: Path, seed: int, phases: str, examples: int
) -> None:
    async with socket_door(FakeEngine("<think>Hm.</think>ok")) as door:
        model = door.services.engine.status().model
        assert model is not None
        hooks = {
            "SCHEMATHESIS_HOOKS": HOOKS.stem,
            "PYTHONPATH": str(HOOKS.parent),
            "VOCABULARY": str(model.vocab_size),
        }
        run = await asyncio.create_subprocess_exec(
            schemathesis,
            "run",
            f"{door.url}/openapi.json",
            *("--phases", phases, "--max-examples", str(examples), "--workers", "1"),
            *("--seed", str(seed), "--continue-on-failure", "--no-color"),
            cwd=tmp_path,
            env=peer_environment(os.environ) | hooks,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await run.communicate()
    assert run.returncode == 0, said.decode()[-6000:]
    # Each operation was asked.
    operations = sum(len(methods) for methods in document()["paths"].values())
    assert f"{operations} selected / {operations} total" in said.decode()
