"""The installed `pillion` command, run as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from private_home import private_environment, short_folder

SCRIPT = Path(sys.executable).parent / "pillion"
SECONDS = 120


class Installed:
    """One user's home, in which at most one daemon runs. `close` ends it and removes the home."""

    def __init__(self) -> None:
        self.home = short_folder()
        self.environment = private_environment(self.home) | {"PILLION_HTTP_PORT": "0"}
        self.environment.pop("PYTHONPATH", None)

    @property
    def runtime(self) -> Path:
        return self.home / "run" / "pillion"

    def run(
        self, *arguments: str | Path, stdin: str = "", cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=cwd or self.home,
            env=self.environment | variables,
            timeout=SECONDS,
            check=False,
        )

    def ok(self, *arguments: str | Path, stdin: str = "") -> str:
        """Its output; fails the test where it fails."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """Running beside the test, with pipes; the test ends it."""
        return subprocess.Popen(
            [SCRIPT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd or self.home,
            env=self.environment,
        )

    def address(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runtime / "daemon.json").read_text())
        return found

    def close(self) -> None:
        self.run("stop")
        shutil.rmtree(self.home, ignore_errors=True)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
