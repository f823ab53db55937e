"""``pillion bench latency``: what the doors add to a key, as a multiple of a bare echo."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine import EngineError, scripted_client
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note
from sidecar.config import Config
from sidecar.jobs.latency_benchmark import (
    CLIENTS,
    ECHO,
    KEYS_A_SECOND,
    SUGGESTED,
    LatencyRow,
    latency_figures,
    type_at_once,
)

if TYPE_CHECKING:
    from rich.table import Table

LATENCY_MINUTES = 0.5


async def latency(minutes: float, json: Path | None) -> None:
    """Type at a server that has a process of its own, and print the table and the figures."""
    note(f"{CLIENTS} clients, {KEYS_A_SECOND} keys a second each, for {60 * minutes:.0f} s")
    with tempfile.TemporaryDirectory(prefix="pillion-") as folder:
        path = str(Path(folder) / "bench.sock")
        async with served(path):
            # What is imported and allocated at the first keys is no one's latency.
            await type_at_once(path, 1.0)
            samples = await type_at_once(path, 60 * minutes)
    rows, figures = samples.rows(), latency_figures(samples, clients=CLIENTS)
    console = report_console()
    console.print(latency_table(rows))
    found: dict[str, Any] = msgspec.to_builtins(figures)
    console.print(msgspec.json.encode(found).decode(), highlight=False, soft_wrap=True)
    if json is not None:
        write_report(json, found, rows=msgspec.to_builtins(rows))


@contextlib.asynccontextmanager
async def served(path: str) -> AsyncIterator[None]:
    """The LSP door on a Unix socket in another process, from when it answers until the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"ready\n":
            raise EngineError("the server that is to be measured did not start")
        yield
    finally:
        process.stdin.close()
        await process.wait()


def latency_table(rows: Sequence[LatencyRow]) -> Table:
    """A row for each kind of round trip."""
    from rich.table import Table

    table = Table(title="Round trips of a key (fake engine)")
    for name in ("kind", "count", "p50 ms", "p99 ms", "p50 over echo", "p99 over echo"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for row in rows:
        table.add_row(
            row.kind,
            str(row.count),
            f"{row.p50_ms:.3f}",
            f"{row.p99_ms:.3f}",
            f"{row.over_echo_p50:.2f}x",
            f"{row.over_echo_p99:.2f}x",
        )
    return table


async def serve(path: str) -> None:
    """The door as the daemon has it, and the echo beside it, until standard input ends."""
    from sidecar.collector import spare_what_is_loaded
    from sidecar.lsp.params import InlineCompletionParams
    from sidecar.lsp.server import REQUESTS, Method, serve_connection
    from sidecar.lsp.session import OpenRequest, Session
    from sidecar.services import Services

    def echo(
        session: Session, params: InlineCompletionParams, request: OpenRequest
    ) -> InlineCompletionParams:
        return params

    engine = scripted_client(SUGGESTED)
    engine.start()
    await engine.ready()
    services = Services(engine=engine, config=Config(), shutdown=lambda: None)
    methods = REQUESTS | {ECHO: Method(InlineCompletionParams, echo)}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_connection(reader, writer, services, methods)

    spare_what_is_loaded()
    server = await asyncio.start_unix_server(connected, path)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    services.workspace.close()
    await engine.stop()


def main() -> None:
    from sidecar.cli.serve import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
