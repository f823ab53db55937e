"""What the daemon tells about itself, for every door alike."""

from __future__ import annotations

import functools
import os
import time
from importlib import metadata
from typing import Any

import msgspec

from sidecar.services import Services


@functools.cache
def version() -> str:
    return metadata.version("pillion")


def status_report(services: Services) -> dict[str, Any]:
    """`EngineStatus` as plain JSON types, with the daemon's own facts beside it: ``version``,
    ``pid``, ``uptime_s``, ``socket``, ``url``, and ``workspace``, a `WatchStatus` for each folder;
    and of the settings ``fast``, with which a reply may be inexact, and ``requested_model``, known
    while ``model`` is still null. The result of ``pillion/status`` and of GET /health."""
    report: dict[str, Any] = msgspec.to_builtins(services.engine.status())
    return report | {
        "version": version(),
        "pid": os.getpid(),
        "uptime_s": round(time.time() - services.started, 3),
        "socket": services.socket,
        "url": services.url,
        "workspace": msgspec.to_builtins(services.workspace.status()),
        "requested_model": services.config.engine.model,
        "fast": services.config.engine.fast,
    }
