"""What the daemon hands to each of its doors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine import EngineClient
from sidecar.config import Config


@dataclass(frozen=True)
class Services:
    """engine: the one client. shutdown: asks the daemon to stop cleanly (returns at once).
    socket: path of the Unix socket; url: of the HTTP door; both None where not served."""

    engine: EngineClient
    config: Config
    shutdown: Callable[[], None]
    socket: str | None = None
    url: str | None = None
    started: float = field(default_factory=time.time)
