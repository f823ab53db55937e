"""``pillion bench latency``: the table, the figures, and the server that is measured."""

import asyncio
import json

import pytest
from rich.console import Console

from sidecar.cli import bench_latency
from sidecar.cli.bench_latency import latency, latency_table, served
from sidecar.jobs.latency_benchmark import Samples, type_at_once


def samples():
    found = Samples()
    found.seconds = {"completion": [0.003], "typed": [0.002], "echo": [0.001]}
    return found


def test_the_table_says_how_many_times_an_echo_a_key_takes(capsys):
    Console(width=120).print(latency_table(samples().rows()))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "completion" in line]
    assert "3.000" in line
    assert "3.00x" in line


async def test_it_prints_and_writes_the_figures(tmp_path, capsys, monkeypatch):
    class Door:
        def __init__(self, path):
            pass

        async def __aenter__(self):
            return None

        async def __aexit__(self, *_):
            return None

    async def typed(path, seconds):
        return samples()

    monkeypatch.setattr(bench_latency, "served", Door)
    monkeypatch.setattr(bench_latency, "type_at_once", typed)
    path = tmp_path / "out.json"
    await latency(0.1, path)
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["completion_over_echo_p50"] == 3.0
    assert printed["completion_over_echo_p99"] == 3.0
    report = json.loads(path.read_text())
    assert report["figures"] == printed
    assert [row["kind"] for row in report["rows"]] == ["completion", "typed", "echo"]


@pytest.mark.slow
async def test_the_server_has_a_process_of_its_own_and_ends_with_the_block(tmp_path):
    path = tmp_path / "s"
    async with served(str(path)):
        found = await type_at_once(str(path), 0.5)
    assert found.seconds["echo"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_unix_connection(str(path))
