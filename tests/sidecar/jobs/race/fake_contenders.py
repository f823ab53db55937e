"""Systems whose replies take as long as is said."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine import EngineError
from sidecar.jobs.race.contenders import Measured
from sidecar.jobs.race.tasks import Task


class FakeClock:
    """Seconds; they pass when somebody replies."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeContender:
    """decode: seconds of ten tokens behind the first; prefill: of a hundred prompt tokens.
    dies_at: which of its replies fails."""

    name: str
    decode: float = 1.0
    prefill: float = 1.0
    clock: FakeClock = field(default_factory=FakeClock)
    serial: str | None = None
    regimes: tuple[str, ...] | None = None
    output: str = "right"
    dies_at: int | None = None
    prompt_tokens: int = 100
    asked: list[str] = field(default_factory=list)

    async def reply(self, task: Task, max_tokens: int) -> Measured:
        if len(self.asked) == self.dies_at:
            raise EngineError("it fell over")
        self.asked.append(task.name)
        self.clock.now += self.prefill + self.decode
        return Measured(
            prompt_tokens=self.prompt_tokens,
            tokens=11,
            prefill=self.prefill,
            decode=self.decode,
            output=self.output,
        )

    def peak_bytes(self) -> int:
        return 0

    async def stop(self) -> None:
        """Nothing runs."""
