"""Starting the daemon behind the terminal that asked for it.

The child must run the installed Pillion whatever folder it is started from: it gets no working
directory on its module path, neither as ``''`` nor through a relative PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import EngineError, NotReady, PillionError
from sidecar.cli.connection import NotRunning, find_daemon, wait_until_ready
from sidecar.config import Config, environment_of, state_dir
from sidecar.runtime_dir import Address, RuntimeDir

# Imports and binding take a second; a machine that is swapping may need many.
DOORS_SECONDS = 60.0
SERVE = (sys.executable, "-P", "-c", "from sidecar.cli import main; main()", "serve")
"""How to start the daemon in a process of its own; see `child_environment`."""

_KEPT_LOG_BYTES = 1 << 20


class StartFailed(PillionError):
    """The daemon did not come up; the message is what it said."""

    """The daemon ended, or did not answer in time; the message says where its log is."""

    code = "start_failed"


@dataclass(frozen=True)
class Background:
    """A daemon that this process started. log: its stdout and stderr, from `log_start` on."""

    process: subprocess.Popen[bytes]
    log: Path
    log_start: int

    def wait_for_doors(self, config: Config) -> Address:
        """The address once both doors answer. Raises StartFailed with what the child said.

        Where somebody else's daemon was quicker the child gives way, and that one's address is
        the answer.
        """
        runtime = RuntimeDir.of(config.daemon)
        deadline = time.monotonic() + DOORS_SECONDS
        while time.monotonic() < deadline:
            gone = self.process.poll() is not None
            if (address := find_daemon(config)) is not None:
                return address
            if gone and runtime.holder() is None:
                raise StartFailed(f"the daemon did not start: {self.last_words()}")
            time.sleep(0.05)
        raise StartFailed(
            f"the daemon does not answer after {DOORS_SECONDS:.0f} s; its log is {self.log}"
        )

    def wait_for_model(self, address: Address) -> dict[str, Any]:
        """The status once the model is loaded. Raises EngineError with what the child said."""
        try:
            return wait_until_ready(address)
        except (NotReady, NotRunning):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(DOORS_SECONDS)
            raise EngineError(self.last_words()) from None

    def last_words(self) -> str:
        """The error that the child ended with."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            lines = log.read().decode(errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        for line in reversed(said):
            _, found, message = line.partition("error: ")
            if found:
                return message
        return said[-1] if said else f"it said nothing (exit code {self.process.returncode})"


def ensure_daemon(
    config: Config, flags: Mapping[str, object], config_file: Path | None
) -> tuple[Address, Background | None]:
    """The running daemon's address; where none runs, start one with these settings. The second
    value is None where one was running. Raises StartFailed.

    An editor that reopens five windows calls this five times at once, and starts one process.
    """
    runtime = RuntimeDir.of(config.daemon)
    runtime.create()
    with runtime.starting():
        if (address := find_daemon(config)) is not None:
            return address, None
        started = _start(config, flags, config_file)
        return started.wait_for_doors(config), started


def _start(config: Config, flags: Mapping[str, object], config_file: Path | None) -> Background:
    """``pillion serve`` in a session of its own."""
    folder = state_dir(config)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "daemon.log"
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _KEPT_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
    folders = {"engine.model": config.engine.model, "engine.draft": config.engine.draft}
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        start_at = os.lseek(handle, 0, os.SEEK_END)
        process = subprocess.Popen(
            SERVE,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env=child_environment(os.environ, {**flags, **folders}, config_file),
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(handle)
    return Background(process, log, start_at)


def child_environment(
    environ: Mapping[str, str], flags: Mapping[str, object], config_file: Path | None
) -> dict[str, str]:
    """`environ` with the flags in it, and with nothing that depends on the working directory."""
    child = {**environ, **environment_of(flags), "PYTHONSAFEPATH": "1"}
    if config_file is not None:
        child["PILLION_CONFIG"] = str(config_file)
    for name in ("PILLION_CONFIG", "PILLION_CACHE"):
        if child.get(name):
            child[name] = str(Path(child[name]).expanduser().absolute())
    path = child.pop("PYTHONPATH", "").split(os.pathsep)
    if absolute := [entry for entry in path if Path(entry).is_absolute()]:
        child["PYTHONPATH"] = os.pathsep.join(absolute)
    return child
