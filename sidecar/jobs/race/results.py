"""What a race comes to: rows for tables, ratios of systems against each other, and the figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sidecar.jobs.race.contenders import Contender, Measured
from sidecar.jobs.race.doors import DoorOverhead
from sidecar.jobs.race.first_token import FirstToken
from sidecar.jobs.race.race import Race
from sidecar.jobs.race.roster import LLAMA, MLX_LM
from sidecar.jobs.race.tasks import REGIMES, REWRITE
from sidecar.jobs.race.verify_cost import VerifyCost
from sidecar.jobs.surplus_benchmark import Ratio, ratio

TARGET_ONLY, PORTFOLIO = "Pillion target-only", "Pillion"
PILLION_DFLASH = "Pillion dflash"
# Where fewer are read, what a request costs by itself would hide what a token costs.
PREFILL_TOKENS = 64

Speed = Callable[[Measured], float]


class Row(Struct, frozen=True, kw_only=True):
    """One system on one task. Speeds are in tokens a second: medians, and every repeat; a prompt's
    where most of it was read. exact: the output is the serial system's (`Contender.serial`) in
    every repeat, None without such. same: it is what Pillion decodes target-only."""

    system: str
    task: str
    regime: str
    decode: float
    decode_repeats: tuple[float, ...]
    prompt: float | None
    prompt_repeats: tuple[float, ...]
    prompt_tokens: int
    tokens: int
    drafted: int | None
    accepted: int | None
    exact: bool | None
    same: bool | None


class Against(Struct, frozen=True, kw_only=True):
    """One of Pillion's speeds against another's, from repeats side by side. pairs: how many."""

    ours: str
    theirs: str
    what: str
    ratio: Ratio
    pairs: int


def rows(race: Race, contenders: Sequence[Contender]) -> list[Row]:
    """By task, and then in the order of the contenders."""
    found = []
    for task in race.tasks:
        for contender in contenders:
            runs = race.runs.get((contender.name, task.name))
            if not runs:
                continue
            made = [runs[number] for number in sorted(runs)]
            cold = tuple(
                round(run.prompt_speed, 2) for run in made if run.read >= run.prompt_tokens / 2
            )
            decode = tuple(round(run.decode_speed, 2) for run in made)
            found.append(
                Row(
                    system=contender.name,
                    task=task.name,
                    regime=task.regime,
                    decode=round(statistics.median(decode), 2),
                    decode_repeats=decode,
                    prompt=round(statistics.median(cold), 2) if cold else None,
                    prompt_repeats=cold,
                    prompt_tokens=made[-1].prompt_tokens,
                    tokens=made[-1].tokens,
                    drafted=made[-1].drafted,
                    accepted=made[-1].accepted,
                    exact=_equal(race, runs, contender.serial, task.name),
                    same=_equal(race, runs, TARGET_ONLY, task.name),
                )
            )
    return found


def _equal(race: Race, runs: Mapping[int, Measured], serial: str | None, task: str) -> bool | None:
    """Greedy decoding has one output, so any of the serial system's repeats will do."""
    truths = race.runs.get((serial or "", task), {}).values()
    if not truths:
        return None
    return all(any(agree(run, truth) for truth in truths) for run in runs.values())


def agree(run: Measured, truth: Measured) -> bool:
    """By token ids, or by text where one of them has no ids. One that went on behind the limit has
    to agree up to there."""
    if run.output == truth.output:
        return True
    if not run.text or not truth.text:
        return False
    if run.tokens > truth.tokens:
        return run.text.startswith(truth.text)
    return run.text == truth.text


def against(
    race: Race,
    ours: str,
    theirs: str,
    what: str,
    speed: Speed,
    regimes: Sequence[str] | None = None,
) -> Against | None:
    """The ratio over all tasks of these regimes in all rounds that both took part in; None if
    there is none. what: said of the result."""
    pairs = list(_pairs(race, ours, theirs, speed, regimes))
    if not pairs:
        return None
    our, their = zip(*pairs, strict=True)
    return Against(ours=ours, theirs=theirs, what=what, ratio=ratio(our, their), pairs=len(pairs))


def _pairs(
    race: Race, ours: str, theirs: str, speed: Speed, regimes: Sequence[str] | None
) -> Iterator[tuple[float, float]]:
    for task in race.tasks:
        if regimes is not None and task.regime not in regimes:
            continue
        our, their = race.runs.get((ours, task.name), {}), race.runs.get((theirs, task.name), {})
        for number in sorted(our.keys() & their.keys()):
            pair = speed(our[number]), speed(their[number])
            if all(pair):
                yield pair


def decoding(run: Measured) -> float:
    """Decoded tokens a second."""
    return run.decode_speed


def prefill(run: Measured) -> float:
    """Prompt tokens a second; 0, which no ratio counts, where few were read."""
    return run.prompt_speed if run.read >= PREFILL_TOKENS else 0.0


def best_llama(race: Race, regime: str) -> str | None:
    """llama.cpp with the drafts that decode this regime fastest, or with none."""
    speeds: dict[str, list[float]] = {}
    for (name, task), runs in race.runs.items():
        if name.split()[0] == LLAMA and any(
            t.name == task and t.regime == regime for t in race.tasks
        ):
            speeds.setdefault(name, []).extend(run.decode_speed for run in runs.values())
    return max(speeds, key=lambda name: statistics.median(speeds[name]), default=None)


def comparisons(race: Race, builtin: Race) -> dict[str, Against | None]:
    """What the figures are made of, by their names."""
    best = best_llama(race, REWRITE) or LLAMA
    return {
        "target_over_mlx_lm": against(race, TARGET_ONLY, MLX_LM, "decoding", decoding),
        "prefill_over_mlx_lm": against(race, TARGET_ONLY, MLX_LM, "prefill", prefill),
        "target_over_llamacpp": against(race, TARGET_ONLY, LLAMA, "decoding", decoding),
        "prefill_over_llamacpp": against(race, TARGET_ONLY, LLAMA, "prefill", prefill),
        "rewrite_portfolio_over_llamacpp_best": against(
            race, PORTFOLIO, best, "decoding a rewrite", decoding, (REWRITE,)
        ),
        "rewrite_portfolio_over_target_only": against(
            race, PORTFOLIO, TARGET_ONLY, "decoding a rewrite", decoding, (REWRITE,)
        ),
        "builtin_code_dflash_over_target_only": against(
            builtin, PILLION_DFLASH, TARGET_ONLY, "decoding held-out code", decoding
        ),
    }


def figures(
    found: Mapping[str, Against | None],
    verify: VerifyCost | None,
    doors: Sequence[DoorOverhead],
) -> dict[str, float | None]:
    """One number each; None where it could not be measured."""
    numbers: dict[str, float | None] = {
        name: one.ratio.mean if one is not None else None for name, one in found.items()
    }
    for rows_ in (8, 4):
        numbers[f"verify_t{rows_}_over_t1"] = verify.over_one(rows_) if verify else None
    # The worse door counts.
    numbers["door_overhead_share"] = max((door.share for door in doors), default=None)
    return numbers


def lost_rows(race: Race, contenders: Sequence[Contender]) -> list[Against]:
    """Where another implementation is faster than Pillion as it comes, by regime; for all tasks
    together, where it reads prompts faster."""
    lost = []
    for contender in contenders:
        if contender.name in (TARGET_ONLY, PORTFOLIO) or contender.name.startswith(PORTFOLIO):
            continue
        seen = [
            against(race, PORTFOLIO, contender.name, regime, decoding, (regime,))
            for regime in (*REGIMES, *{t.regime for t in race.tasks if t.regime not in REGIMES})
        ]
        seen.append(against(race, PORTFOLIO, contender.name, "prefill", prefill))
        lost += [one for one in seen if one is not None and one.ratio.mean < 1.0]
    return lost


class Results(Struct, frozen=True, kw_only=True):
    """Everything that was measured, as it stands in the JSON file. kernels: what computed each
    engine of ours. doubtful: those in which stock MLX won a race against our kernels, which one
    busy moment can decide. peers: versions, by peer. absent: why a system is not, or not to the
    end, measured. memory: peak bytes."""

    figures: dict[str, float | None]
    complete: bool
    comparisons: dict[str, Against | None]
    rows: tuple[Row, ...]
    builtin_rows: tuple[Row, ...]
    lost: tuple[Against, ...]
    first_token: tuple[FirstToken, ...]
    doors: tuple[DoorOverhead, ...]
    verify: VerifyCost | None
    memory: dict[str, int]
    absent: dict[str, str]
    peers: dict[str, dict[str, str]]
    kernels: dict[str, str]
    doubtful: tuple[str, ...]
    held_out_code: str
    settings: dict[str, Any]


def doubtful(kernels: Mapping[str, str]) -> tuple[str, ...]:
    """The engines some of whose kernels lost their race at load."""
    return tuple(name for name, said in kernels.items() if "stock MLX is" in said)
