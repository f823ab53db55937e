"""A status in which drafting has done something."""

from __future__ import annotations

from typing import Any

import msgspec

from engine import CostCurve, DrafterSurplus, EngineStatus, Grid, RegimeSurplus, Span
from engine.testing import fake_model

CODE = RegimeSurplus(
    regime="code",
    rounds=30,
    tokens=90,
    seconds=1.5,
    tok_s=60.0,
    saved=1.25,
    surplus_ms=13.8889,
    widths={1: 10, 5: 20},
    looks=3,
    target_only={"does not pay": 0.25, 'said "no"\n': 0.5},
    drafters=(DrafterSurplus(drafter="copy", rounds=20, tried=(20, 16, 0), accepted=(16, 8, 0)),),
)
CALL = RegimeSurplus(
    regime="tool_call",
    rounds=5,
    tokens=5,
    seconds=0.3,
    tok_s=16.7,
    saved=-0.01,
    surplus_ms=-2.0,
    widths={1: 5},
    looks=1,
    target_only={"nothing to draft": 0.3},
    drafters=(),
)
TIMELINE = (
    Span(regime="code", drafter="", width=1, rounds=10, tokens=10, seconds=0.5),
    Span(regime="code", drafter="copy", width=5, rounds=20, tokens=80, seconds=1.0),
    Span(regime="tool_call", drafter="", width=1, rounds=5, tokens=5, seconds=0.3),
)
COSTS = CostCurve(
    forward=Grid(
        contexts=(64, 1024),
        counts=tuple(range(1, 8)),
        seconds=((0.04, 0.042, 0.046, 0.051, 0.06, 0.09, 0.1),) * 2,
    ),
    drafters={"dflash": Grid(contexts=(64, 1024), counts=(1, 2), seconds=((0.005, 0.006),) * 2)},
    reading={"dflash": 25e-6},
)


def report(*, workspace: Any = (), **facts: Any) -> dict[str, Any]:
    """As `sidecar.metrics.status_report` gives it."""
    status = EngineStatus(
        state="ready",
        model=fake_model(),
        drafters=("copy",),
        regimes=(CODE, CALL),
        costs=COSTS,
        slowdown=1.3,
    )
    status = msgspec.structs.replace(status, **facts)
    plain: dict[str, Any] = msgspec.to_builtins(status)
    return plain | {
        "version": "0",
        "pid": 1,
        "uptime_s": 2.5,
        "workspace": list(workspace),
        "socket": None,
        "url": None,
        "requested_model": "fake",
        "fast": False,
    }
