"""The replay lab: the surplus controller on many texts and machines, in simulated time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from engine.decoding.cost_curve import CostCurve
from engine.decoding.costs import Costs
from engine.decoding.surplus import Choice, SurplusController
from engine.decoding.surplus_report import Span, Timeline
from engine.replay.adversaries import ADVERSARIES
from engine.replay.machines import MACHINES
from engine.replay.simulated import Simulated, SimulatedFigures
from engine.replay.simulation import Arm, Outcome, decode, hindsight
from engine.replay.trace import (
    KINDS,
    NEW_CODE,
    PROSE,
    TOOL_CALL,
    Text,
    Trace,
    assembled,
    joined,
    stationary,
    switching,
)

STATIONARY, SWITCHING, RECORDED, ADVERSARIAL = "stationary", "switching", "recorded", "adversarial"
# Long enough that what a controller pays to begin with nothing is about a hundredth.
TOKENS = {STATIONARY: 8_000, SWITCHING: 8_000, ADVERSARIAL: 2_000}
SEED = 1
AGENT_REPLY = [(PROSE, 30), (NEW_CODE, 120), (TOOL_CALL, 60), (PROSE, 30), (NEW_CODE, 80)]


def simulate(machines: Mapping[str, CostCurve] | None = None) -> Iterator[Simulated]:
    """Every text on every machine, each with a controller that knows nothing.

    machines: instead of the ones that are known, such as this one's measured curve.
    """
    for machine, curve in (machines or MACHINES).items():
        block = curve.forward.counts[-1] - 1
        for name, kind in KINDS.items():
            trace = stationary(name, kind, TOKENS[STATIONARY], block, SEED)
            yield _against_best(machine, curve, trace.text(), STATIONARY)
        kinds = [kind for name, kind in KINDS.items() if name != "hopeless"]
        for seed in (SEED, SEED + 1):
            name = f"all kinds, seed {seed}"
            trace = switching(name, kinds, TOKENS[SWITCHING], block, seed)
            yield _against_best(machine, curve, trace.text(), SWITCHING)
        yield _against_best(machine, curve, recorded().text(), RECORDED)
        for adversary in ADVERSARIES:
            text = adversary(TOKENS[ADVERSARIAL], block)
            outcome = decode(text, curve, SurplusController(Costs(curve)))
            yield _row(machine, text, ADVERSARIAL, outcome)


def timeline() -> tuple[Span, ...]:
    """The rounds of a reply in which code comes before and after a tool call, on a base M4, by a
    controller that has seen a few like it."""
    curve = MACHINES["M4, 4 bit"]
    controller, costs = SurplusController(Costs(curve)), Costs(curve)
    seen = Timeline()

    def watch(choice: Choice, committed: int) -> None:
        seconds = costs.verify("", choice.drafts, choice.context) + sum(
            costs.draft(ask.drafter, ask.drafts, choice.context) for ask in choice.asks
        )
        seen.add(choice, choice.drafts, committed, seconds)

    for seed in range(SEED, SEED + 5):
        seen = Timeline()
        reply = assembled("", AGENT_REPLY, curve.forward.counts[-1] - 1, seed)
        decode(reply.text(), curve, controller, watch=watch)
    return seen.spans()


def figures(rows: Iterable[Simulated]) -> SimulatedFigures:
    """Of all rows together."""
    rows = list(rows)
    return SimulatedFigures(
        sim_stationary_worst_vs_best_fixed=max(r.vs_best for r in rows if r.kind == STATIONARY),
        sim_switching_worst_vs_best_per_regime=max(r.vs_best for r in rows if r.kind == SWITCHING),
        sim_worst_vs_target_only=max(r.slowest for r in rows),
    )


def recorded() -> Trace:
    """What the drafters of the built-in pair got right in its target's replies to the prompts of
    `pillion bench`, one behind the other (recorded by `pillion bench surplus --record`)."""
    file = Path(__file__).with_name("recorded.json")
    traces = msgspec.json.decode(file.read_bytes(), type=list[Trace])
    return joined("the built-in pair's replies", traces)


def _against_best(machine: str, curve: CostCurve, text: Text, kind: str) -> Simulated:
    outcome = decode(text, curve, SurplusController(Costs(curve)))
    whole, by_regime = hindsight(text, curve)
    if kind == STATIONARY:
        by_regime = {"": whole}
    best = {regime: min(arms, key=lambda arm: arms[arm]) for regime, arms in by_regime.items()}
    seconds = sum(by_regime[regime][arm] for regime, arm in best.items())
    named = ", ".join(f"{regime} {_named(arm)}".strip() for regime, arm in best.items())
    return _row(machine, text, kind, outcome, seconds, named)


def _row(
    machine: str, text: Text, kind: str, outcome: Outcome, best: float = 0.0, best_arm: str = ""
) -> Simulated:
    return Simulated(
        machine=machine,
        text=text.name,
        kind=kind,
        tokens=len(text),
        speed=round(outcome.target_only / outcome.seconds, 4),
        best=round(outcome.target_only / best, 4) if best else 0.0,
        best_arm=best_arm,
        vs_best=round(outcome.seconds / best, 4) if best else 0.0,
        slowest=round(outcome.slowest, 4),
        width=outcome.usual_width,
    )


def _named(arm: Arm) -> str:
    drafter, width = arm
    return f"{drafter}/{width}" if drafter else "target-only"
