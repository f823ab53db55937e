"""A server of another implementation: started, watched, asked for its memory, and ended."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine import EngineError
from sidecar.jobs.peak_memory import peak_memory

READY_SECONDS = 180.0
STOP_SECONDS = 10.0
_LAST_WORDS = 300


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


class ServerProcess:
    """Use `start` and, whatever happens, `stop`. It is in a process group of its own, so that
    Ctrl-C is for us and its children end with it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self._process = process
        self._log = log
        self._peak = 0

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        port: int,
        environment: Mapping[str, str],
        ready: str = "/health",
        seconds: float = READY_SECONDS,
    ) -> ServerProcess:
        """Returns when GET `ready` answers with 200. Raises EngineError with its last words when
        it ends before, or does not answer in time."""
        handle, log = tempfile.mkstemp(prefix="pillion-peer-", suffix=".log")
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=dict(environment),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            Path(log).unlink()
            raise EngineError(f"{name} does not start: {error.strerror or error}") from error
        finally:
            os.close(handle)
        server = cls(name, process, port, Path(log))
        # Whoever is interrupted while this waits in a thread has nothing to stop.
        atexit.register(server.stop)
        try:
            server._wait(ready, seconds)
        except BaseException:
            server.stop()
            raise
        return server

    def _wait(self, ready: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(EngineError):
                self.get(ready)
                return
            time.sleep(0.2)
        raise EngineError(
            f"{self.name} did not answer {ready} within {seconds:.0f} seconds: {self.last_words()}"
        )

    def get(self, path: str) -> bytes:
        """The body that GET answers with 200. Raises EngineError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise EngineError(f"{self.name} does not answer {path}: {error!r}") from error
        if response.status != 200:
            raise EngineError(f"{self.name} answers {path} with status {response.status}")
        return body

    def check(self) -> None:
        """Raises EngineError if it has ended."""
        if self._process.poll() is not None:
            raise EngineError(
                f"{self.name} ended with exit code {self._process.returncode}: {self.last_words()}"
            )

    def last_words(self) -> str:
        """The last lines that it printed."""
        try:
            text = self._log.read_bytes().decode(errors="replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " / ".join(lines[-3:])[-_LAST_WORDS:] or "it said nothing"

    def peak_bytes(self) -> int:
        """The most memory that it and its children had, so far; 0 where that cannot be read."""
        if self._process.poll() is None:
            self._peak = max(self._peak, peak_memory(self._process.pid))
        return self._peak

    def stop(self) -> None:
        """Asked first, because a server may have something to keep; then made to. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.unlink(missing_ok=True)
        atexit.unregister(self.stop)
