"""What the daemon hands to each of its doors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine import EngineClient
from sidecar.config import Config
from sidecar.workspace.workspace import Workspace


@dataclass(frozen=True)
class Services:
    """engine: the one client. shutdown: asks the daemon to stop cleanly (returns at once).
    socket: path of the Unix socket; url: of the HTTP door; both None where not served. workspace:
    the folders that clients work in."""

    engine: EngineClient
    config: Config
    shutdown: Callable[[], None]
    socket: str | None = None
    url: str | None = None
    started: float = field(default_factory=time.time)
    workspace: Workspace = field(init=False)

    def __post_init__(self) -> None:
        workspace = Workspace(self.engine.files_changed, self.config.workspace.max_file_bytes)
        object.__setattr__(self, "workspace", workspace)
