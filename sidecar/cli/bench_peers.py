"""``pillion bench peers``: Pillion and other implementations, side by side in one run."""

from __future__ import annotations

import asyncio
import datetime
import json as json_text
import os
import subprocess
from pathlib import Path

import msgspec

from engine import EngineError, PeerWeights, PillionError, RequestError, peer_weights_command
from sidecar.cli.background import child_environment
from sidecar.cli.peer_benchmark import PeerBenchmark, PeersSettings
from sidecar.cli.report import machine, report_console, versions, write_report
from sidecar.cli.terminal import note
from sidecar.jobs.race.chart import chart
from sidecar.jobs.race.document import Machine, document
from sidecar.jobs.race.environments import Installed, install
from sidecar.jobs.race.results import Results
from sidecar.jobs.race.roster import ENVIRONMENTS, PEERS
from sidecar.jobs.race.tasks import REGIMES


def peers(
    settings: PeersSettings, *, json: Path | None, report: Path | None, only_install: bool
) -> None:
    """Install what is not there, measure, print and write."""
    weights = laid_out_weights()
    installed, absent = install_peers(settings.peers, Path(weights.cache) / "peers")
    if only_install:
        for name, why in absent.items():
            note(f"{name}: {why}")
        return
    note(
        f"measuring takes {settings.minutes:g} minutes, what is loaded and the doors another two, "
        "and a system that hangs up to four"
    )

    def write(results: Results) -> None:
        if json is not None:
            facts = msgspec.to_builtins(results, str_keys=True)
            write_report(json, facts.pop("figures"), **facts)
        if report is not None:
            write_document(results, report)

    try:
        results = asyncio.run(PeerBenchmark(settings, weights, installed, absent, write).run())
    except asyncio.CancelledError:
        raise EngineError("interrupted; what was known by then is in the files") from None
    console = report_console()
    for name, one in results.comparisons.items():
        if one is not None:
            ratio = one.ratio
            console.print(
                f"{name}: {ratio.mean:.2f} ({ratio.low:.2f}-{ratio.high:.2f})", highlight=False
            )
    console.print(json_text.dumps(results.figures), highlight=False, soft_wrap=True)


def install_peers(
    names: tuple[str, ...], folder: Path
) -> tuple[dict[str, Installed], dict[str, str]]:
    """The environments of these peers, and why others of them have none."""
    installed, absent = {}, {}
    for name in names:
        if (environment := ENVIRONMENTS.get(name)) is None:
            continue
        note(f"installing {name}, unless it is here; some need minutes")
        try:
            installed[name] = install(environment, folder)
        except PillionError as error:
            absent[name] = error.message
    return installed, absent


def laid_out_weights() -> PeerWeights:
    """SmolLM2 in the forms that others read. Raises EngineError with the reason."""
    ran = subprocess.run(
        peer_weights_command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=child_environment(os.environ, {}, None),
        check=False,
    )
    try:
        found = msgspec.json.decode(ran.stdout, type=PeerWeights)
    except msgspec.DecodeError:
        raise EngineError(
            f"the weights could not be laid out: exit code {ran.returncode}"
        ) from None
    if found.error:
        raise EngineError(found.error)
    return found


def write_document(results: Results, report: Path) -> None:
    """The Markdown file, and the chart beside it."""
    picture = report.with_suffix(".svg")
    where = Machine(
        machine=machine(),
        versions=versions(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    picture.write_text(chart(results), encoding="utf-8")
    report.write_text(document(results, where, picture.name), encoding="utf-8")


def chosen(asked: list[str] | None, known: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """Those of `known` that a flag names, each alone or several with commas between; all of them
    without the flag. Raises RequestError."""
    if not asked:
        return known
    names = [name.strip() for each in asked for name in each.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise RequestError(
                f"--{flag} {name}: there is no such one; there are {', '.join(known)}", field=flag
            )
    return tuple(name for name in known if name in names)


def peers_settings(
    asked_peers: list[str] | None,
    asked_tasks: list[str] | None,
    *,
    repeat: int,
    max_tokens: int | None,
    minutes: float,
) -> PeersSettings:
    """From the verb's flags. Raises RequestError."""
    settings = PeersSettings(
        peers=chosen(asked_peers, PEERS, "peer"),
        regimes=chosen(asked_tasks, REGIMES, "task"),
        repeat=repeat,
        minutes=minutes,
    )
    if max_tokens is None:
        return settings
    return msgspec.structs.replace(settings, max_tokens=max_tokens)
