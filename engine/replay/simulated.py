"""What the replay lab reports."""

from __future__ import annotations

from msgspec import Struct


class Simulated(Struct, frozen=True, kw_only=True):
    """A text decoded on a machine.

    speed: against target-only. best: what the best choice in hindsight would have reached, and
    best_arm which that is: one for the whole text, or for each regime where it switches.
    vs_best: time against that one's; 0 where there is none. slowest: the largest ratio to
    target-only time that any beginning of the text had. width: rows of most drafted rounds.
    """

    machine: str
    text: str
    kind: str
    tokens: int
    speed: float
    best: float
    best_arm: str
    vs_best: float
    slowest: float
    width: int


class SimulatedFigures(Struct, frozen=True, kw_only=True):
    """Ratios of time, the worst of all texts and machines."""

    sim_stationary_worst_vs_best_fixed: float
    sim_switching_worst_vs_best_per_regime: float
    sim_worst_vs_target_only: float
