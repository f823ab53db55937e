"""``pillion verify``: prove on this machine, with this model, that drafting changes no reply."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct

from engine import (
    EngineClient,
    EngineOptions,
    EngineStatus,
    engine_client,
    known_drafters,
    random_drafter,
)
from sidecar.cli.in_process import started
from sidecar.cli.report import check_writable, report_console, write_report
from sidecar.cli.terminal import describe_exactness, note, say_error
from sidecar.config import load_config
from sidecar.jobs.coding_prompts import PROMPTS
from sidecar.jobs.disturbance import Disturbances
from sidecar.jobs.verification import Pair, Verification, cases, hash_of

if TYPE_CHECKING:
    from rich.table import Table

# The run is sized to take about this long where --max-tokens does not say otherwise.
_SECONDS = 300.0
_FEWEST_TOKENS, _MOST_TOKENS = 8, 32

ALL = "all"

EXIT_EQUAL, EXIT_DIFFERENT, EXIT_UNPROVEN = 0, 1, 2


class Settings(Struct, frozen=True, kw_only=True):
    """What to compare; `command` says what each means."""

    pairs: int = 300
    max_tokens: int | None = None
    chaos: bool = False
    fast: bool = False
    seed: int = 1
    json: Path | None = None


@dataclasses.dataclass(frozen=True)
class Proof:
    """One way to draft. client: makes the engine, when it is its turn. drafters, policy: see
    `GenerateRequest`."""

    name: str
    client: Callable[[], EngineClient]
    drafters: tuple[str, ...] = ()
    policy: str = "always"


def command(
    model: Annotated[
        str | None, typer.Option(help="Name, Hub id or folder. Default: the configured model.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="auto, copy, a drafter's Hub id or folder, or all: every drafter that is known "
            "for the model, then one that guesses at random, then drafters swapped in mid-reply, "
            "each with all the pairs.",
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="How many requests to make twice.")] = 300,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a reply. Default: 8 to 32, sized from one timed reply to about five "
            "minutes of decoding.",
        ),
    ] = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos", help="Meanwhile cancel requests, preempt replies and reuse prefixes."
        ),
    ] = False,
    switch: Annotated[
        bool,
        typer.Option("--switch", help="Another drafter and width every round, at random."),
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Use widths that did not probe equal at load.")
    ] = False,
    seed: Annotated[int, typer.Option(help="First of the seeds.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Make each request twice, with drafting and without, and compare the token ids.

    Coding prompts of several regimes (new code, rewrite, chat, tool call, fill in the middle,
    repetitive text), each greedy, sampled (temperature 1, top-p 0.95, top-k 20) and sampled with
    penalties (temperature 0.7), with seed after seed. The model runs in this process, so stop a
    daemon that needs the memory.

    The whole proof: `pillion verify --draft all --pairs 600`.

    Exit code 0: all equal. 1: a difference; its place and the top-2 margin there are printed.
    2: nothing was proven, because no draft was verified. 3: the engine failed.
    """
    check_writable(json)
    flags = {"engine.model": model, "engine.fast": fast or None}
    options = load_config(flags | {"engine.draft": None if draft == ALL else draft}).engine
    settings = Settings(
        pairs=pairs,
        max_tokens=max_tokens,
        chaos=chaos,
        fast=options.fast,
        seed=seed,
        json=json,
    )
    with tempfile.TemporaryDirectory(prefix="pillion-verify-") as scratch:
        policy = "switch" if switch else "always"
        proofs = [Proof(options.draft, lambda: engine_client(options), policy=policy)]
        if draft == ALL:
            proofs = every_proof(options, Path(scratch) / "random")
        raise typer.Exit(asyncio.run(prove(proofs, options.model, settings)))


def every_proof(options: EngineOptions, random: Path) -> list[Proof]:
    """Each drafter known for the model, one that knows nothing, and all by turns. random: a folder
    for the second."""

    def known(draft: str) -> EngineClient:
        return engine_client(msgspec.structs.replace(options, draft=draft))

    def unknowing() -> EngineClient:
        return known(str(random if random.is_dir() else random_drafter(options.model, random)))

    drafts = known_drafters(options.model)
    best = functools.partial(known, drafts[0]) if drafts else unknowing
    return [
        *(
            Proof(Path(draft).name, functools.partial(known, draft), ("dflash",))
            for draft in drafts
        ),
        Proof("random drafter", unknowing, ("dflash",)),
        Proof("swapped in mid-reply", best, policy="switch"),
    ]


async def prove(proofs: Sequence[Proof], name: str, settings: Settings) -> int:
    """Run, print and write everything; the exit code."""
    began, runs, pairs, verdicts = time.monotonic(), [], list[Pair](), []
    for proof in proofs:
        note(f"drafting: {proof.name}")
        async with started(proof.client(), name) as client:
            if settings.max_tokens is None:
                tokens = await _affordable(client, settings.pairs * len(proofs), settings.seed)
                settings = msgspec.structs.replace(settings, max_tokens=tokens)
            note(f"{settings.pairs} pairs, up to {settings.max_tokens} tokens a reply")
            made, figures = await _compare(proof, client, settings)
            # Asked last: an audit in idle time may have changed it meanwhile.
            status = client.status()
        _print(made, figures, status, fast=settings.fast)
        verdicts.append(_verdict(figures, status))
        runs.append(figures)
        pairs += made
    total = dict(runs[0]) if len(runs) == 1 else _figures(pairs, time.monotonic() - began)
    total |= {"model": status.model.id if status.model else "", "runs": runs}
    if settings.json is not None:
        write_report(
            settings.json,
            total,
            exactness=status.exactness,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            pairs=pairs,
        )
    # A difference is worse than a proof that is missing.
    return EXIT_DIFFERENT if EXIT_DIFFERENT in verdicts else max(verdicts)


async def _affordable(client: EngineClient, pairs: int, seed: int) -> int:
    """Tokens of a reply that so many pairs have the time for."""
    (case,) = cases(PROMPTS, 1, seed)
    each = await Verification(client, max_tokens=_FEWEST_TOKENS).token_seconds(case)
    affordable = int(_SECONDS / (2 * pairs * each)) if each else _MOST_TOKENS
    return max(_FEWEST_TOKENS, min(affordable, _MOST_TOKENS))


async def _compare(
    proof: Proof, client: EngineClient, settings: Settings
) -> tuple[list[Pair], dict[str, Any]]:
    disturbances = Disturbances(client, settings.seed) if settings.chaos else None
    verification = Verification(
        client,
        max_tokens=settings.max_tokens or _FEWEST_TOKENS,
        name=proof.name,
        drafters=proof.drafters,
        policy=proof.policy,
        disturbances=disturbances,
    )
    began = time.monotonic()
    with _progress(settings.pairs) as advance:
        pairs = await verification.run(cases(PROMPTS, settings.pairs, settings.seed), advance)
    figures = {"drafter": proof.name} | _figures(pairs, time.monotonic() - began)
    if disturbances is not None:
        figures["chaos"] = disturbances.tally
    return pairs, figures


def _figures(pairs: Sequence[Pair], seconds: float) -> dict[str, Any]:
    return {
        "pairs": len(pairs),
        "differences": sum(pair.difference is not None for pair in pairs),
        "exact": all(pair.exact for pair in pairs),
        "width": max(pair.width for pair in pairs),
        "accepted": sum(pair.accepted for pair in pairs),
        "rejected": sum(pair.rejected for pair in pairs),
        "tokens": sum(pair.tokens for pair in pairs),
        "tokens_per_round": _per_round(pairs),
        "rounds": sum(pair.rounds for pair in pairs),
        "cached_tokens": sum(pair.cached_tokens for pair in pairs),
        "seconds": round(seconds, 1),
    }


def _per_round(pairs: Sequence[Pair]) -> float:
    """Committed tokens per target forward; a reply's first token comes from its prefill."""
    rounds = sum(pair.rounds for pair in pairs)
    tokens = sum(max(0, pair.tokens - 1) for pair in pairs)
    return round(tokens / rounds, 3) if rounds else 0.0


def _verdict(figures: dict[str, Any], status: EngineStatus) -> int:
    if figures["differences"]:
        say_error(f"{figures['differences']} of {figures['pairs']} pairs differ")
        return EXIT_DIFFERENT
    if not figures["accepted"] + figures["rejected"]:
        reason = status.exactness.reason if status.exactness else ""
        why = reason or "the model's replies gave the drafters nothing to draft, or drafting is off"
        say_error(f"nothing is proven: no draft was ever verified ({why})")
        return EXIT_UNPROVEN
    return EXIT_EQUAL


def _print(
    pairs: Sequence[Pair], figures: dict[str, Any], status: EngineStatus, *, fast: bool
) -> None:
    console = report_console()
    console.print(_summary(pairs))
    if parted := [pair for pair in pairs if pair.difference is not None]:
        console.print(_differences(parted))
    console.print(
        f"{status.model.id if status.model else ''}, {figures['drafter']}: "
        f"{figures['pairs']} pairs, {figures['differences']} differences, "
        f"{figures['accepted']} drafts accepted, {figures['rejected']} rejected, "
        f"{figures['tokens_per_round']:.2f} tokens a round, {figures['seconds']:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    facts = {"exactness": msgspec.to_builtins(status.exactness), "fast": fast}
    console.print(
        describe_exactness(facts),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if chaos := figures.get("chaos"):
        console.print(
            f"meanwhile: {chaos.preemptions} preemptions, {chaos.cancellations} cancellations, "
            f"{chaos.repeats} repeats, {chaos.prefix_hits} prefix hits",
            highlight=False,
        )


def _summary(pairs: Sequence[Pair]) -> Table:
    """A row for each regime and sampling; its hash covers the hashes of its pairs."""
    from rich.table import Table

    table = Table(title="Drafting on and off")
    for name in ("regime", "sampling"):
        table.add_column(name)
    for name in ("pairs", "accepted", "rejected", "tokens/round"):
        table.add_column(name, justify="right")
    for name in ("SHA-256 drafted", "SHA-256 target-only", ""):
        table.add_column(name)
    for regime, sampling in dict.fromkeys((pair.regime, pair.sampling) for pair in pairs):
        group = [pair for pair in pairs if (pair.regime, pair.sampling) == (regime, sampling)]
        drafted = hash_of([n for pair in group for n in bytes.fromhex(pair.drafted_hash)])
        serial = hash_of([n for pair in group for n in bytes.fromhex(pair.serial_hash)])
        table.add_row(
            regime,
            sampling,
            str(len(group)),
            str(sum(pair.accepted for pair in group)),
            str(sum(pair.rejected for pair in group)),
            f"{_per_round(group):.2f}",
            drafted[:12],
            serial[:12],
            "[green]=[/]" if drafted == serial else "[red]differ[/]",
        )
    return table


def _differences(parted: Sequence[Pair]) -> Table:
    from rich.table import Table

    table = Table(title="Pairs that differ")
    names = ("prompt", "sampling", "seed", "SHA-256 drafted", "SHA-256 target-only")
    for name in (*names, "at token", "drafted", "target-only", "margin"):
        table.add_column(name)
    for pair in parted:
        difference = pair.difference
        assert difference is not None
        at = difference.position
        table.add_row(
            pair.prompt,
            pair.sampling,
            str(pair.seed),
            pair.drafted_hash[:12],
            pair.serial_hash[:12],
            str(at),
            str(difference.drafted[at]) if at < len(difference.drafted) else "(ended)",
            str(difference.serial[at]) if at < len(difference.serial) else "(ended)",
            "" if difference.margin is None else f"{difference.margin:.4g}",
        )
    return table


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Pair], None]]:
    """A bar with the time left on a terminal, else a line for every tenth."""
    import sys

    ended: list[Pair] = []
    if not sys.stderr.isatty():

        def say(pair: Pair) -> None:
            ended.append(pair)
            if len(ended) * 10 // total > (len(ended) - 1) * 10 // total:
                differing = sum(pair.difference is not None for pair in ended)
                note(f"{len(ended)} of {total} pairs, {differing} differences")

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verifying", total=total)

        def advance(pair: Pair) -> None:
            ended.append(pair)
            differing = sum(pair.difference is not None for pair in ended)
            bar.update(task, advance=1, description=f"verifying, {differing} differences")

        yield advance
