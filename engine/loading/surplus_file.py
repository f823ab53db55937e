"""What was measured and learnt about drafting on this machine, kept from start to start."""

from __future__ import annotations

import contextlib
import os
import re
from importlib import metadata

import mlx.core as mx
import msgspec
from msgspec import Struct

from engine.decoding.acceptance import Learnt
from engine.decoding.cost_curve import CostCurve
from engine.decoding.looks import Key
from engine.errors import ModelError
from engine.loading.registry import cache_dir
from engine.messages import ModelInfo


class Known(Struct, frozen=True, kw_only=True):
    """The acceptance of one drafter in one regime."""

    regime: str
    drafter: str
    confidence: int
    learnt: Learnt


class Surplus(Struct, frozen=True, kw_only=True):
    """The file. The curve holds for this machine and this MLX only."""

    machine: str
    mlx: str
    curve: CostCurve
    known: tuple[Known, ...] = ()

    def learnt(self) -> dict[Key, Learnt]:
        return {Key(k.regime, k.drafter, k.confidence): k.learnt for k in self.known}


class SurplusFile:
    """One for a model with its drafter. A damaged or foreign file is as good as none."""

    def __init__(self, info: ModelInfo, drafter: str) -> None:
        name = re.sub(r"[^\w.-]+", "-", f"{info.fingerprint[:16]}-{drafter or 'copy'}")
        self.path = cache_dir() / "surplus" / f"{name}.json"

    def read(self) -> Surplus | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Surplus)
        except (OSError, msgspec.DecodeError, ModelError):
            return None

    def write(self, curve: CostCurve, learnt: dict[Key, Learnt]) -> None:
        """Replace the file. A full disk or a read-only one costs what was learnt, no reply."""
        known = tuple(
            Known(regime=key.regime, drafter=key.drafter, confidence=key.confidence, learnt=one)
            for key, one in learnt.items()
        )
        surplus = Surplus(machine=machine(), mlx=metadata.version("mlx"), curve=curve, known=known)
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.touch(mode=0o600)
            partial.write_bytes(msgspec.json.encode(surplus))
            partial.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()

    def curve(self, surplus: Surplus | None, width: int, drafters: set[str]) -> CostCurve | None:
        """The kept curve, if it is of this machine and MLX, and of these widths and drafters."""
        here = (machine(), metadata.version("mlx"))
        if surplus is None or (surplus.machine, surplus.mlx) != here:
            return None
        curve = surplus.curve
        fits = curve.forward.counts[-1] == width and set(curve.drafters) == drafters
        return curve if fits else None


def machine() -> str:
    """What a cost curve depends on besides the model."""
    facts = mx.device_info()
    where = str(mx.default_device().type).rpartition(".")[2]
    return f"{facts.get('device_name', 'unknown')}, {where}, {os.cpu_count()} cores"
