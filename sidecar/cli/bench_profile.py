"""``pillion bench profile``: where the time of a decode round goes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from engine import EngineError, EngineOptions, RoundProfile, profile_command
from sidecar.cli.background import child_environment
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note

COLUMNS = {
    "draft_ms": "draft",
    "build_ms": "build",
    "choice_ms": "choose",
    "wait_ms": "wait",
    "rest_ms": "rest",
    "cpu_ms": "CPU",
    "waits": "waits",
}


def profile(options: Sequence[EngineOptions], json: Path | None) -> None:
    """One model after the other; print and write. Raises EngineError with the reason."""
    rounds = [one for each in options for one in _profiles(each)]
    _print(rounds)
    if json is not None:
        write_report(json, {"rounds": len(rounds)}, profile=rounds)


def _profiles(options: EngineOptions) -> Iterator[RoundProfile]:
    note(f"rounds of {options.model}")
    with subprocess.Popen(
        profile_command(options),
        stdout=subprocess.PIPE,
        env=child_environment(os.environ, {}, None),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            one = msgspec.json.decode(line, type=RoundProfile)
            if one.error:
                raise EngineError(one.error)
            yield one
    if process.returncode:
        raise EngineError(f"the profile ended with exit code {process.returncode}")


def _print(rounds: Sequence[RoundProfile]) -> None:
    from rich.table import Table

    table = Table(
        title="milliseconds of a round: the drafter, building the forward and the choice in "
        "Python, waiting for both, rollback; CPU is this process on all processors"
    )
    for name in ("model", "round", "sampling"):
        table.add_column(name)
    for name in COLUMNS.values():
        table.add_column(name, justify="right")
    for one in rounds:
        table.add_row(
            one.model, one.round, one.sampling, *(str(getattr(one, name)) for name in COLUMNS)
        )
    report_console().print(table)
