"""Round trips of typing clients, and the ratios made of them."""

import asyncio

import pytest

from engine import EngineClient, GenerateRequest
from engine.testing import FakeEngine
from sidecar.config import Config, WorkspaceConfig
from sidecar.jobs.latency_benchmark import (
    ECHO,
    SUGGESTED,
    Samples,
    latency_figures,
    percentile,
    type_at_once,
)
from sidecar.lsp.params import InlineCompletionParams
from sidecar.lsp.server import REQUESTS, Method, serve_connection
from sidecar.services import Services


@pytest.fixture
async def door(tmp_path):
    """The path of a door that has the echo beside its methods, and the engine behind it."""
    backend = FakeEngine(SUGGESTED)
    engine = EngineClient(backend)
    engine.start()
    await engine.ready()
    config = Config(workspace=WorkspaceConfig(warm=False))
    services = Services(engine=engine, config=config, shutdown=lambda: None)
    echo = Method(InlineCompletionParams, lambda session, params, request: params)
    methods = REQUESTS | {ECHO: echo}
    tasks = []

    def connected(reader, writer):
        serving = serve_connection(reader, writer, services, methods)
        tasks.append(asyncio.ensure_future(serving))

    server = await asyncio.start_unix_server(connected, tmp_path / "s")
    yield str(tmp_path / "s"), backend
    server.close()
    await asyncio.gather(*tasks)
    await engine.stop()


async def test_clients_type_and_every_key_has_its_echo(door):
    path, backend = door
    samples = await type_at_once(path, 0.1, clients=2, keys_a_second=400)
    counts = {kind: len(found) for kind, found in samples.seconds.items()}
    assert counts["completion"] + counts["typed"] == counts["echo"] == 2 * 40
    # A line as it is suggested, but for its last key and the line's end.
    assert counts["typed"] == 2 * (len(SUGGESTED) - 1)
    # The model is asked at all the others, and only there.
    assert len(backend.seen) == counts["completion"]
    assert samples.unanswered == 0
    assert all(took > 0 for found in samples.seconds.values() for took in found)


def test_ratios_are_of_the_same_percentile():
    samples = Samples()
    samples.seconds["echo"] = [0.001 * n for n in range(1, 102)]
    samples.seconds["completion"] = [0.002 * n for n in range(1, 102)]
    samples.seconds["typed"] = [0.051]
    samples.unanswered = 1
    figures = latency_figures(samples, clients=3)
    assert (figures.completion_over_echo_p50, figures.completion_over_echo_p99) == (2.0, 2.0)
    assert figures.typed_over_echo_p50 == 1.0
    assert (figures.keys, figures.unanswered, figures.clients) == (102, 1, 3)
    (row, *_) = samples.rows()
    assert (row.kind, row.count, row.p50_ms, row.p99_ms) == ("completion", 101, 102.0, 200.0)


def test_percentiles_of_few_values():
    assert percentile([7.0], 99) == 7.0
    assert percentile([1.0, 3.0], 50) == 2.0


async def test_the_engine_of_the_measured_door_keeps_no_request():
    backend = FakeEngine(SUGGESTED, records=False)
    engine = EngineClient(backend)
    engine.start()
    await engine.ready()
    reply = engine.generate(GenerateRequest(id="one", prompt=(1, 2, 3), max_tokens=20))
    assert (await reply.finished()).finish_reason == "stop"
    await engine.stop()
    assert not backend.seen
    assert not backend.endings
