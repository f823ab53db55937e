"""The surplus controller of a loaded model, from what was measured before or is measured now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.decoding.cost_curve import CostCurve
from engine.decoding.cost_measure import CostMeasurement
from engine.decoding.costs import Costs
from engine.decoding.surplus import SurplusController
from engine.drafters.dflash import DFlashModel
from engine.gpu.cost_grid import rows_worth_timing
from engine.loading.surplus_file import SurplusFile
from engine.messages import ModelInfo
from engine.targets.target import Target

# What was learnt is written at the end, and in idle time this many seconds after the last time.
KEEP_EVERY = 60.0


@dataclass
class Measured:
    """measurement: begins to measure again."""

    controller: SurplusController
    measurement: Callable[[], CostMeasurement]
    file: SurplusFile
    kept_at: float

    def keep(self, *, now: bool = False) -> None:
        """Write what was learnt, if it is time."""
        if now or time.monotonic() - self.kept_at >= KEEP_EVERY:
            self.kept_at = time.monotonic()
            self.file.write(self.controller.costs.curve, self.controller.learnt())


def measured(
    target: Target,
    info: ModelInfo,
    width: int,
    drafter: DFlashModel | None,
    name: str,
    progress: Callable[[str, float | None], None],
    confirms: Callable[[CostMeasurement, CostCurve], bool] = CostMeasurement.confirms,
) -> Measured:
    """width: most rows of a forward, at least 2. name: the drafter's. confirms: whether a kept
    curve still holds."""

    counts = rows_worth_timing(target.model, width)

    def measurement() -> CostMeasurement:
        return CostMeasurement(target, info.vocab_size, info.context, width, drafter, counts=counts)

    file = SurplusFile(info, name)
    known = file.read()
    curve = file.curve(known, width, {"dflash"} if drafter is not None else set())
    if curve is None or not confirms(measurement(), curve):
        curve = _measure(measurement(), progress)
    controller = SurplusController(Costs(curve), known.learnt() if known is not None else None)
    made = Measured(controller, measurement, file, time.monotonic())
    made.keep(now=True)
    return made


def _measure(
    measurement: CostMeasurement, progress: Callable[[str, float | None], None]
) -> CostCurve:
    while measurement.step():
        progress("measuring what rounds cost", measurement.share)
    return measurement.curve()
