"""The published document: complete, and what schemathesis makes of the door by it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from http_door import asgi_door, services_of, socket_door
from jsonschema import Draft202012Validator

from engine.testing import FakeEngine
from sidecar.config import Config
from sidecar.http.app import decoding_routes
from sidecar.http.limits import Limits
from sidecar.http.openapi import document
from sidecar.jobs.race.environments import PeerEnvironment, install, peer_environment

SCHEMATHESIS = PeerEnvironment(name="schemathesis", requirements=("schemathesis==4.32.5",))
# A document cannot say that a named tool must be declared, or that a part is no image: what is
# refused for that is within the schema.
BEYOND_SCHEMAS = "positive_data_acceptance"


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


@pytest.mark.slow
def test_its_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema({"$defs": document()["components"]["schemas"]})


@pytest.mark.slow
async def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    installed = await asyncio.to_thread(install, SCHEMATHESIS, tmp_path)
    async with socket_door(FakeEngine("<think>Hm.</think>ok")) as door:
        run = await asyncio.create_subprocess_exec(
            installed.program("schemathesis"),
            "run",
            f"{door.url}/openapi.json",
            *("--phases", "coverage,fuzzing", "--max-examples", "5", "--workers", "1"),
            *("--exclude-checks", BEYOND_SCHEMAS, "--continue-on-failure", "--no-color"),
            cwd=tmp_path,
            env=peer_environment(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await run.communicate()
    assert run.returncode == 0, said.decode()[-6000:]
