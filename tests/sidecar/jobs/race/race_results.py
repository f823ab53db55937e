"""A race that is over, and what came of it."""

from __future__ import annotations

from fake_contenders import FakeContender

from engine.decoding.round_log import Round
from sidecar.jobs.race.contenders import Contender, Measured
from sidecar.jobs.race.doors import overhead
from sidecar.jobs.race.first_token import FirstToken
from sidecar.jobs.race.race import Race
from sidecar.jobs.race.results import (
    PILLION_DFLASH,
    PORTFOLIO,
    TARGET_ONLY,
    Results,
    comparisons,
    doubtful,
    figures,
    lost_rows,
    rows,
)
from sidecar.jobs.race.tasks import CHAT, HELD_OUT, REWRITE, Task
from sidecar.jobs.race.verify_cost import cost_of

TASKS = [Task(name="rename", regime=REWRITE), Task(name="advice", regime=CHAT)]


def contenders() -> list[Contender]:
    """Ours, mlx_lm, llama.cpp and its drafts, of which one is not exact."""
    return [
        FakeContender(TARGET_ONLY),
        FakeContender(PORTFOLIO, serial=TARGET_ONLY),
        FakeContender("mlx_lm"),
        FakeContender("llama.cpp", output="theirs"),
        FakeContender("llama.cpp ngram_mod", output="wrong", serial="llama.cpp"),
        FakeContender("llama.cpp ngram_simple", output="theirs", serial="llama.cpp"),
    ]


SECONDS = {
    # decode of ten tokens, prefill of a hundred; by round.
    TARGET_ONLY: ((1.0, 1.0), (2.0, 2.0)),
    PORTFOLIO: ((0.5, 1.0), (1.0, 2.0)),
    "mlx_lm": ((10.0, 12.5), (20.0, 25.0)),
    "llama.cpp": ((0.8, 0.5), (1.6, 1.0)),
    "llama.cpp ngram_mod": ((0.4, 0.5), (0.8, 1.0)),
    "llama.cpp ngram_simple": ((0.9, 0.5), (1.8, 1.0)),
}
OUTPUTS = {"llama.cpp": "theirs", "llama.cpp ngram_simple": "theirs", "llama.cpp ngram_mod": "x"}


def race() -> Race:
    """Two rounds; the machine is half as fast in the second one."""
    made = Race(TASKS, 11, deadline=1e6)
    for name, by_round in SECONDS.items():
        for task in TASKS:
            made.runs[name, task.name] = {
                number: reply(decode, prefill, OUTPUTS.get(name, "right"))
                for number, (decode, prefill) in enumerate(by_round)
            }
    made.lost["vllm-mlx"] = "warm-up: it | fell\nover"
    return made


def builtin_race() -> Race:
    """Held-out code: DFlash is 2.5 times as fast."""
    made = Race([Task(name="requests/api.py:get", regime=HELD_OUT)], 11, deadline=1e6)
    made.runs[TARGET_ONLY, "requests/api.py:get"] = {0: reply(1.0, 1.0), 1: reply(2.0, 1.0)}
    made.runs[PILLION_DFLASH, "requests/api.py:get"] = {0: reply(0.4, 1.0), 1: reply(0.8, 1.0)}
    return made


def reply(decode: float, prefill: float, output: str = "right", *, cached: int = 0) -> Measured:
    """Eleven tokens behind a hundred."""
    return Measured(
        prompt_tokens=100, tokens=11, prefill=prefill, decode=decode, output=output, cached=cached
    )


def round_of(rows_: int, seconds: float, *, looks: int = 0) -> Round:
    """A logged round of the copy drafter, with looks at others."""
    given = (rows_ - 1,) if rows_ > 1 else ()
    asks = (*([("copy", rows_ - 1, 0)] if given else []), *([("dflash", 3, 0)] * looks))
    return Round(
        "code", 10, 8, (), "copy", rows_ - 1, asks, (*given, *([3] * looks)), given, 1, seconds
    )


def results() -> Results:
    """All of it."""
    over, builtin, entrants = race(), builtin_race(), contenders()
    of_builtin: list[Contender] = [
        FakeContender(TARGET_ONLY),
        FakeContender(PILLION_DFLASH, serial=TARGET_ONLY),
    ]
    found = comparisons(over, builtin)
    verify = cost_of([round_of(n, 0.01 * n) for n in (1, 4, 8) for _ in range(3)])
    doors = (overhead("HTTP", [100.0, 100.0], [99.0, 97.0]), overhead("JSON-RPC", [50.0], [50.0]))
    kernels = {
        "smollm2-135m": "AVX2 kernels in 9 modules",
        "builtin": "AVX2 kernels in 7 modules; not for Linear 1: stock MLX is 1.5 times as fast",
    }
    return Results(
        figures=figures(found, verify, doors),
        complete=True,
        comparisons=found,
        rows=tuple(rows(over, entrants)),
        builtin_rows=tuple(rows(builtin, of_builtin)),
        lost=tuple(lost_rows(over, entrants)),
        first_token=(
            FirstToken(
                name="llama.cpp",
                cold=1.25,
                second_turn=0.5,
                restart=1.5,
                started=0.75,
                prompt_tokens=(200, 240),
            ),
        ),
        doors=doors,
        verify=verify,
        memory={"llama.cpp": 400 << 20},
        absent=dict(over.lost),
        peers={"llama.cpp": {"xllamacpp": "2026.10.11549", "pip": "1"}},
        kernels=kernels,
        doubtful=doubtful(kernels),
        held_out_code="requests==2.32.5",
        settings={"seconds": 600, "max_tokens": 11, "repeat": 2},
    )
