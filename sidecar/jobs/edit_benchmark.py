"""How fast edits are made: what each system took for each task, as figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from msgspec import Struct

from engine import EngineError, instructions
from sidecar.jobs.edit_tasks import EditTask
from sidecar.jobs.race.contenders import Measured
from sidecar.jobs.race.race import Runs
from sidecar.jobs.surplus_benchmark import Ratio, ratio

TARGET_ONLY, PORTFOLIO = "target-only", "portfolio"
COPY, PREDICTION, DFLASH = "copy", "prediction", "dflash"
SINGLES = (COPY, PREDICTION, DFLASH)


class EditRow(Struct, frozen=True, kw_only=True):
    """A system's edits of one kind, or of ``all``. tok_s: of the median repeats of all its tasks
    together, prefill and first tokens not counted. accepted: drafts a reply, where it says. same:
    every reply is what its own kind decodes target-only; None where that was not measured."""

    model: str
    system: str
    kind: str
    tok_s: float
    tasks: int
    tokens: int
    accepted: float | None = None
    same: bool | None = None


class EditFigures(Struct, frozen=True, kw_only=True):
    """Of the built-in pair, or whatever model was named. rewrite_portfolio_over_target_only: with
    its 95 % interval, over the tasks. portfolio_over_best_single: against the fastest of the
    drafters alone, tokens a second of all tasks together; _per_task: the mean of each task's own
    ratio, in which short ones count as much as long ones. differences: replies that drafting
    changed. right: the model's own answers. peers: tok/s, by model and system."""

    rewrite_portfolio_over_target_only: float
    rewrite_interval: tuple[float, float]
    portfolio_over_best_single: float
    portfolio_over_best_single_per_task: float
    best_single: str
    differences: int
    tasks: int
    right: int
    peers: dict[str, float]


def tokens_per_second(runs: Sequence[Measured]) -> float:
    """The first token of each reply comes from its prefill."""
    seconds = sum(run.decode for run in runs)
    return sum(run.tokens - 1 for run in runs) / seconds if seconds else 0.0


def median_repeat(runs: Runs, system: str, task: str) -> Measured:
    """The one in the middle of a task's repeats by speed: others use the machine as well, now and
    then."""
    repeats = sorted(runs[system, task].values(), key=lambda one: one.decode_speed)
    return repeats[len(repeats) // 2]


def edit_rows(
    model: str, runs: Runs, kinds: Mapping[str, str], serial: Mapping[str, str | None]
) -> list[EditRow]:
    """kinds: of each task. serial: by system, the one whose replies its own must equal."""
    found = []
    for kind in (*dict.fromkeys(kinds.values()), "all"):
        for system in serial:
            tasks = [task for task in kinds if kind in (kinds[task], "all")]
            tasks = [task for task in tasks if (system, task) in runs]
            if not tasks:
                continue
            measured = [median_repeat(runs, system, task) for task in tasks]
            accepted = [one.accepted for one in measured if one.accepted is not None]
            found.append(
                EditRow(
                    model=model,
                    system=system,
                    kind=kind,
                    tok_s=round(tokens_per_second(measured), 2),
                    tasks=len(tasks),
                    tokens=sum(one.tokens for one in measured),
                    accepted=round(statistics.fmean(accepted), 2) if accepted else None,
                    same=_same(runs, system, serial[system], tasks),
                )
            )
    return found


def differences(runs: Runs, systems: Sequence[str], truth: str) -> int:
    """Replies of `systems` that are not those of `truth`."""
    return sum(
        one.output != next(iter(runs[truth, task].values())).output
        for (system, task), repeats in runs.items()
        if system in systems and (truth, task) in runs
        for one in repeats.values()
    )


def edit_figures(
    runs: Runs, rows: Sequence[EditRow], right: int, ours: Sequence[str]
) -> EditFigures:
    """runs: of the model that is named first in `rows`. Raises EngineError where there was no time
    for one task by each of our systems."""
    model = rows[0].model if rows else ""
    speed = {row.system: row.tok_s for row in rows if row.kind == "all" and row.model == model}
    tasks = sorted({task for system, task in runs if system == PORTFOLIO})
    if not all((system, task) in runs for system in ours for task in tasks[:1]) or not tasks:
        raise EngineError("there was no time for a single edit by each; --minutes allows more")
    against = paired(runs, PORTFOLIO, TARGET_ONLY, tasks)
    single = max((name for name in SINGLES if name in speed), key=lambda name: speed[name])
    return EditFigures(
        rewrite_portfolio_over_target_only=against.mean,
        rewrite_interval=(against.low, against.high),
        portfolio_over_best_single=round(speed[PORTFOLIO] / speed[single], 4),
        portfolio_over_best_single_per_task=paired(runs, PORTFOLIO, single, tasks).mean,
        best_single=single,
        differences=differences(runs, ours, TARGET_ONLY),
        tasks=len(tasks),
        right=right,
        peers={
            f"{row.system} on {row.model}": row.tok_s
            for row in rows
            if row.kind == "all" and not (row.model == model and row.system in ours)
        },
    )


def right_answers(runs: Runs, system: str, tasks: Sequence[EditTask]) -> int:
    """How many tasks a system does exactly as they should be done."""
    return sum(
        one.text == instructions.reply(task.right).strip()
        for task in tasks
        for one in list(runs.get((system, task.name), {}).values())[:1]
    )


def paired(runs: Runs, one: str, other: str, tasks: Sequence[str]) -> Ratio:
    """Of two systems' speeds, task by task, each in its median repeat."""
    both = [task for task in tasks if (one, task) in runs and (other, task) in runs]
    speeds = [
        [median_repeat(runs, system, task).decode_speed for task in both] for system in (one, other)
    ]
    return ratio(speeds[0], speeds[1])


def _same(runs: Runs, system: str, serial: str | None, tasks: Sequence[str]) -> bool | None:
    if serial is None or not any((serial, task) in runs for task in tasks):
        return None
    kept = {key: repeats for key, repeats in runs.items() if key[1] in tasks}
    return differences(kept, [system], serial) == 0
