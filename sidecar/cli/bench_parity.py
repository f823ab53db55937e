"""``pillion bench parity``: the DFlash drafters against the official implementation."""

from __future__ import annotations

import json as json_text
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from engine import EngineError, ParityCase, parity_command
from sidecar.cli.background import child_environment
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note, say_error

EXIT_DIFFERENT = 1


def parity(rounds: int, json: Path | None) -> None:
    """Compare, print and write; exits 1 if anything differs that should not."""
    note("fetching the official dflash, if it is not here yet; then some minutes of both sides")
    cases = list(_cases(rounds))
    figures = figures_of(cases)
    _print(cases, figures)
    if json is not None:
        write_report(json, figures, cases=cases)
    if figures["draft_token_differences"] or figures["accepted_length_differences"]:
        say_error("the drafters do not draft what the official ones do")
        raise typer.Exit(EXIT_DIFFERENT)


def figures_of(cases: Sequence[ParityCase]) -> dict[str, Any]:
    """Sums over the cases that count, and what the others differed in, apart."""
    counted = [case for case in cases if case.counts]
    return {
        "cases": len(counted),
        "rounds": sum(case.rounds for case in counted),
        "draft_tokens": sum(case.tokens for case in counted),
        "draft_token_differences": sum(case.token_differences for case in counted),
        "accepted_length_differences": sum(case.accepted_length_differences for case in counted),
        "uncounted_token_differences": sum(c.token_differences for c in cases if not c.counts),
    }


def _cases(rounds: int) -> Iterator[ParityCase]:
    """Results as they come. Raises EngineError with the reason if the process gives up."""
    with subprocess.Popen(
        parity_command(rounds),
        stdout=subprocess.PIPE,
        env=child_environment(os.environ, {}, None),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            case = msgspec.json.decode(line, type=ParityCase)
            if case.error:
                raise EngineError(case.error)
            note(f"{case.token_differences} of {case.tokens} tokens differ: {case.name}")
            yield case
    if process.returncode:
        raise EngineError(f"the comparison ended with exit code {process.returncode}")


def _print(cases: Sequence[ParityCase], figures: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="drafts of ours that the official dflash does not draft, float32")
    table.add_column("case")
    for name in ("rounds", "tokens", "differences", "accepted", "lengths that differ"):
        table.add_column(name, justify="right")
    for case in cases:
        table.add_row(
            case.name if case.counts else f"{case.name} (not counted)",
            *(str(count) for count in (case.rounds, case.tokens, case.token_differences)),
            str(case.accepted or ""),
            str(case.accepted_length_differences) if case.accepted else "",
        )
    console = report_console()
    console.print(table)
    console.print(json_text.dumps(figures), highlight=False, soft_wrap=True)
