"""``pillion bench``: measure this machine, with the numbers of the alternatives beside."""

from __future__ import annotations

import asyncio
import enum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine import known_drafters
from sidecar.cli.bench_cache import BRANCHINGS, CacheSettings, cache
from sidecar.cli.bench_chaos import CHAOS_MINUTES, bench_chaos
from sidecar.cli.bench_decode import Settings, decode
from sidecar.cli.bench_edit import (
    EDIT_MINUTES,
    EDIT_REPEAT,
    EDIT_TOKENS,
    EditBenchmark,
    EditSettings,
    best_options,
)
from sidecar.cli.bench_fim import FimSettings, fim
from sidecar.cli.bench_latency import LATENCY_MINUTES, latency
from sidecar.cli.bench_parity import parity
from sidecar.cli.bench_peers import peers as race
from sidecar.cli.bench_peers import peers_settings
from sidecar.cli.bench_profile import profile
from sidecar.cli.bench_surplus import REPEAT as SURPLUS_REPEAT
from sidecar.cli.bench_surplus import SCHEMAS, SurplusSettings, surplus
from sidecar.cli.peer_benchmark import PEERS_MINUTES, PEERS_TOKENS
from sidecar.cli.report import check_writable
from sidecar.config import load_config
from sidecar.jobs.fim_benchmark import HOLES
from sidecar.jobs.race.roster import PEERS
from sidecar.jobs.race.tasks import REGIMES
from sidecar.jobs.recorded_agents import AGENTS

REPEAT = 3
EDIT_FILES = 40
TOKENS = 128
PROFILED = ("builtin", "smollm2-135m")


class What(enum.StrEnum):
    """decode: tokens a second of target-only, of each drafter and of other implementations, and how
    many drafts are accepted.
    parity: the drafts of our DFlash drafters against those of the official implementation.
    surplus: drafting while it pays against always and never, simulated and live.
    peers: Pillion, its doors and other implementations, which are installed, side by side.
    edit: edits of held-out functions: target-only, each drafter, the portfolio, mlx_lm; and
    llama.cpp on a model that it can run.
    cache: recorded agents' requests with the cache, without it, after a restart and elsewhere; a
    line typed key by key; random branchings and killed writers, compared with no cache.
    latency: what a key costs in the doors, with a fake engine, against a bare echo.
    fim: holes of several lines in held-out code, filled in the middle, from the prefix alone, and
    by llama.cpp on SmolLM2.
    profile: where a round's time goes, of the built-in pair and SmolLM2, or of --model.
    chaos: 16 clients that hang up, dawdle, cancel and send garbage, for ten minutes."""

    DECODE = "decode"
    PARITY = "parity"
    SURPLUS = "surplus"
    PEERS = "peers"
    EDIT = "edit"
    CACHE = "cache"
    LATENCY = "latency"
    FIM = "fim"
    PROFILE = "profile"
    CHAOS = "chaos"


Draft = Annotated[
    list[str] | None,
    typer.Option(
        help="A drafter's Hub id or folder, or copy; may be given several times. Default: every "
        "one that is known for the model; for surplus the best one.",
    ),
]
MaxWidth = Annotated[
    int | None,
    typer.Option(
        "--max-width", "--block-size", help="Most tokens of one verify step; the sure one too."
    ),
]
NoEos = Annotated[
    bool, typer.Option("--no-eos", help="Go on behind the end of a reply, to --max-tokens.")
]
Bits = Annotated[
    int | None, typer.Option(help="Quantise the drafters to 4 or 8 bits; 0: not at all.")
]
Model = Annotated[
    str | None, typer.Option(help="Name, Hub id or folder. Default: the configured model.")
]
Cooldown = Annotated[float, typer.Option(min=0.0, help="Seconds of rest before each measurement.")]
Peers = Annotated[bool, typer.Option(help="Measure mlx_lm and z-lab's dflash (from PyPI), too.")]
Counted = Annotated[
    bool, typer.Option(help="Count accepted drafts on held-out code, greedy and sampled.")
]
Repeat = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Interleaved repeats; medians are shown. Default: {REPEAT}, of surplus "
        f"{SURPLUS_REPEAT}.",
    ),
]
Schemas = Annotated[int, typer.Option(min=0, help="Replies that are held to JSON schemas.")]
Picture = Annotated[
    Path | None, typer.Option(help="Draw the rounds of an agent's reply to this SVG file.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=2, help=f"Tokens of a reply. Default: {TOKENS}, of peers {PEERS_TOKENS}."),
]
Peer = Annotated[
    list[str] | None,
    typer.Option(help=f"Of peers: only these of {', '.join(PEERS)}; commas are allowed."),
]
Task = Annotated[
    list[str] | None,
    typer.Option(help=f"Of peers: only these of {', '.join(REGIMES)}; commas are allowed."),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        min=0.05,
        help=f"Of peers, edit, latency and chaos: the time for measuring, without installing. "
        f"Default: {PEERS_MINUTES:g}, {EDIT_MINUTES:g}, {LATENCY_MINUTES:g}, {CHAOS_MINUTES:g}.",
    ),
]
Tasks = Annotated[
    int | None,
    typer.Option(min=1, help=f"Of edit: files, {EDIT_FILES}. Of fim: holes, {HOLES}."),
]
Install = Annotated[
    bool, typer.Option("--install", help="Of peers: install the others, measure nothing.")
]
Report = Annotated[
    Path | None,
    typer.Option(help="Of peers: write a Markdown document here, and a chart beside it."),
]
Record = Annotated[
    Path | None, typer.Option(help="Write acceptance traces of replies to this file.")
]

Simulated = Annotated[
    bool, typer.Option("--simulated", help="Only what needs no model: the replay lab.")
]
Traces = Annotated[
    Path | None,
    typer.Option(help="Of cache: folder with recorded requests of agents, <agent>.jsonl."),
]
Agent = Annotated[list[str] | None, typer.Option(help="Of cache: only this agent's requests.")]
Branchings = Annotated[int, typer.Option(min=0, help="Of cache: random branchings.")]
Quick = Annotated[bool, typer.Option("--quick", help="Of cache: a tenth of it, and nobody else.")]


def command(
    what: Annotated[What, typer.Argument(help="What to measure.", show_choices=True)],
    model: Model = None,
    draft: Draft = None,
    draft_bits: Bits = None,
    max_width: MaxWidth = None,
    context: Annotated[int | None, typer.Option(help="Context in tokens.")] = None,
    repeat: Repeat = None,
    cooldown: Cooldown = 0.0,
    max_tokens: MaxTokens = None,
    no_eos: NoEos = False,
    peers: Peers = True,
    acceptance: Counted = True,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a parity case.")] = 200,
    simulated: Simulated = False,
    schemas: Schemas = SCHEMAS,
    picture: Picture = None,
    record: Record = None,
    peer: Peer = None,
    task: Task = None,
    minutes: Minutes = None,
    tasks: Tasks = None,
    install: Install = False,
    report: Report = None,
    traces: Traces = None,
    agent: Agent = None,
    branchings: Branchings = BRANCHINGS,
    quick: Quick = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """decode: prompts greedily, target-only, with each drafter, and by others on the same weights;
    then accepted drafts on held-out code. Every system has the model in memory once more.

    surplus: the controller replayed on several machines; then replies drafted never, always, and by
    surplus, and replies to 200 JSON schemas.

    peers: SmolLM2 and the built-in pair by Pillion and by others, installed from PyPI, each into an
    environment of its own. What cannot be measured is a row that says why.

    edit: a writer killed at 100 moments; edits with a known right answer in held-out files, on the
    built-in pair, some on SmolLM2 with llama.cpp. --no-peers leaves others out.

    cache: requests of recorded agents with the cache, without it, after a restart, and by mlx_lm's
    and llama.cpp's servers; keystrokes, branchings, killed writers, and whether a reply changed.
    """
    for path in (json, picture, record, report):
        check_writable(path)
    if what is What.PEERS:
        limit, times = minutes or PEERS_MINUTES, repeat or REPEAT
        racing = peers_settings(peer, task, repeat=times, max_tokens=max_tokens, minutes=limit)
        race(racing, json=json, report=report, only_install=install)
        return
    if what is What.LATENCY:
        asyncio.run(latency(minutes or LATENCY_MINUTES, json))
        return
    if what is What.PARITY:
        parity(rounds, json)
        return
    flags = _flags(model, draft_bits, max_width, context)
    options = load_config(flags).engine
    if what is What.PROFILE:
        names = [model] if model else list(PROFILED)
        profile([load_config({**flags, "engine.model": name}).engine for name in names], json)
        return
    if what is What.CHAOS:
        bench_chaos(options, minutes or CHAOS_MINUTES, json)
        return
    if what is What.CACHE:
        agents = tuple(agent or AGENTS)
        measuring = CacheSettings(
            traces=traces, agents=agents, branchings=branchings, peers=peers, json=json
        )
        asyncio.run(cache(options, measuring.quick() if quick else measuring))
        return
    # One at a time, so that each is checked as the configured one is.
    each = [load_config({**flags, "engine.draft": name}) for name in draft or ()]
    asked = [config.engine.draft for config in each] or [options.draft]
    chosen = msgspec.structs.replace(options, draft=asked[0])
    if what is What.SURPLUS:
        settings = SurplusSettings(
            simulated_only=simulated,
            repeat=repeat or SURPLUS_REPEAT,
            max_tokens=max_tokens or TOKENS,
            schemas=schemas,
            picture=picture,
            record=record,
            json=json,
        )
        asyncio.run(surplus(chosen, settings))
        return
    if what is What.FIM:
        asyncio.run(fim(chosen, FimSettings(holes=tasks or HOLES, peers=peers, json=json)))
        return
    if what is What.EDIT:
        editing = _editing(tasks, repeat, max_tokens, minutes, peers, json)
        asyncio.run(EditBenchmark(best_options(chosen), editing).run())
        return
    drafts = known_drafters(options.model) if asked == ["auto"] else tuple(asked)
    decoding = Settings(
        drafts=tuple(name for name in drafts if name not in ("auto", "copy", "none")),
        repeat=repeat or REPEAT,
        max_tokens=max_tokens or TOKENS,
        cooldown=cooldown,
        ignore_eos=no_eos,
        peers=peers,
        acceptance=acceptance,
        json=json,
    )
    asyncio.run(decode(options, decoding))


def _flags(
    model: str | None, draft_bits: int | None, max_width: int | None, context: int | None
) -> dict[str, object]:
    return {
        "engine.model": model,
        "engine.draft_bits": draft_bits,
        "engine.max_width": max_width,
        "engine.context": context,
    }


def _editing(
    tasks: int | None,
    repeat: int | None,
    max_tokens: int | None,
    minutes: float | None,
    peers: bool,
    json: Path | None,
) -> EditSettings:
    return EditSettings(
        tasks=tasks or EDIT_FILES,
        repeat=repeat or EDIT_REPEAT,
        max_tokens=max_tokens or EDIT_TOKENS,
        minutes=minutes or EDIT_MINUTES,
        peers=peers,
        json=json,
    )
