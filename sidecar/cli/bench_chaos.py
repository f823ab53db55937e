"""``pillion bench chaos``: many clients that behave badly, against a daemon of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import msgspec
import typer

from engine import CacheOptions, watched_client
from sidecar.cli.private_daemon import private_daemon
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note, say_error
from sidecar.config import Config, EngineConfig
from sidecar.jobs.chaos import Chaos, Ledger, chaos

CHAOS_MINUTES = 10.0
STREAMS = 16
# Little enough to be full before memory is first looked at.
_CACHE_BYTES = 64 << 20
EXIT_WRONG = 1


def bench_chaos(options: EngineConfig, minutes: float, json: Path | None) -> None:
    """Measure, print and write; exits 1 if anything happened that should not."""
    note(f"{STREAMS} clients for {minutes:g} minutes, on {options.model}")
    result = run(options, seconds=60 * minutes)
    figures = msgspec.to_builtins(result)
    _print(result)
    if json is not None:
        write_report(json, figures, streams=STREAMS, model=options.model)
    if result.problems:
        for problem in result.problems:
            say_error(problem)
        raise typer.Exit(EXIT_WRONG)


def run(options: EngineConfig, *, seconds: float) -> Chaos:
    """The clients and the daemon in this process, the engine real."""
    ledger = Ledger()
    cache = CacheOptions(memory=_CACHE_BYTES, disk=0)
    engine = watched_client(options, cache, ledger.posted, ledger.emitted, ledger.turned)

    def open_sequences() -> int:
        status = engine.status()
        return max(status.active + status.queued, engine.open_requests)

    with private_daemon(Config(engine=options), engine) as address:
        while engine.status().state == "loading":
            time.sleep(0.1)
        return asyncio.run(
            chaos(address, ledger, open_sequences, resident_bytes, streams=STREAMS, seconds=seconds)
        )


def resident_bytes() -> int:
    """Of this process, now."""
    said = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True, text=True
    )
    return 1024 * int(said.stdout)


def _print(result: Chaos) -> None:
    from rich.table import Table

    table = Table(title=f"{STREAMS} clients that behave badly, {result.seconds:g} s")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in msgspec.to_builtins(result).items():
        shown = value
        if isinstance(value, dict):
            shown = ", ".join(f"{count} {kind}" for kind, count in sorted(value.items()))
        table.add_row(name, str(shown))
    report_console().print(table)
