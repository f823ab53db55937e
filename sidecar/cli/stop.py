"""`pillion stop`: end the daemon and wait until it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import typer

from engine import PillionError
from sidecar.cli.connection import Rpc, find_daemon
from sidecar.cli.options import AsJson, ConfigFile
from sidecar.cli.terminal import print_json
from sidecar.config import load_config
from sidecar.runtime_dir import RuntimeDir

_ASKED_SECONDS, _SIGNALLED_SECONDS = 20.0, 10.0


def command(
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Stop the daemon and wait until it is gone. Open requests may finish for two seconds."""
    settings = load_config(path=config)
    runtime = RuntimeDir.of(settings.daemon)
    pid = _running(runtime)
    if pid is None:
        _say("no daemon is running", as_json=as_json, pid=None)
        return
    if (address := find_daemon(settings)) is not None:
        with contextlib.suppress(PillionError), Rpc(address) as rpc:
            rpc.call("pillion/shutdown")
    if address is None or not _gone(runtime, _ASKED_SECONDS):
        # Whoever holds the lock wrote its pid there, so no other process can be hit.
        if runtime.holder() == pid and pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if not _gone(runtime, _SIGNALLED_SECONDS):
            raise PillionError(f"the daemon (pid {pid}) does not stop; `kill -9 {pid}` ends it")
    _say(f"stopped (pid {pid})", as_json=as_json, pid=pid)


def _running(runtime: RuntimeDir) -> int | None:
    if not runtime.path.exists():
        return None
    runtime.check()
    return runtime.holder()


def _gone(runtime: RuntimeDir, seconds: float) -> bool:
    """Wait until the lock is free: then the doors are closed and the engine has let go."""
    deadline = time.monotonic() + seconds
    while runtime.holder() is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _say(message: str, *, as_json: bool, pid: int | None) -> None:
    if as_json:
        print_json({"stopped": pid is not None, "pid": pid})
    else:
        typer.echo(message)
