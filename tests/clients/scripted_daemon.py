"""The real daemon with its real doors, and behind them a model that answers from a script.

Run as a program it serves until a signal, in the folders that the environment names, so the
`pillion` command finds it like any other daemon. What it suggests and how it edits is the same
on every machine, which the built-in model's taste is not. A file `suggestions` in its folder gets
longer by a character each time one is asked for; a file `told.json` has what the engine's status
says (see `told_engine`).
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from told_engine import ToldEngine, tell

from engine import EngineClient, GenerateRequest, Priority
from engine.testing import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX
from sidecar.config import load_config
from sidecar.daemon import Daemon

MEAN = "total = sum(values)\n{0}    count = len(values)\n{0}    return total / count"
SUGGESTIONS = {
    "def mean(values):\n    ": MEAN.format(""),
    "def mean(values):\n        ": MEAN.format("    "),
    "name = ": "'😀é' + title",
    "first = ": "values[0]",
}
"""What follows a line that ends so."""
OTHERWISE = {1: "min(values)", 2: "max(values)"}
"""What is suggested beside the first one, by seed."""
EXPLANATION = "It **adds** numbers.\n"
ROUND_SECONDS = 0.001
_FENCED = re.compile(r"(`{3,})(\w*)\n(.*)\n\1", re.DOTALL)


def reply(request: GenerateRequest) -> str:
    if FIM_MIDDLE in request.prompt:
        return suggestion(request)
    asked = bytes(token for token in request.prompt if token < 256).decode()
    if "Explain" in asked:
        return EXPLANATION
    return edited(asked)


def suggestion(request: GenerateRequest) -> str:
    tokens = list(request.prompt)
    middle = tokens.index(FIM_MIDDLE)
    shown = tokens[tokens.index(FIM_PREFIX) + 1 : tokens.index(FIM_SUFFIX)]
    before = bytes([*shown, *tokens[middle + 1 :]]).decode(errors="replace")
    before += request.must_start_with
    if request.priority is Priority.INTERACTIVE:
        with Path("suggestions").open("a") as asked:
            asked.write("x")
    if request.seed in OTHERWISE:
        return request.must_start_with + OTHERWISE[request.seed]
    for end, text in SUGGESTIONS.items():
        if before.endswith(end):
            return request.must_start_with + text
    return ""


def edited(asked: str) -> str:
    """The code with the words exchanged that the instruction has in backticks, and without
    trailing commas where a problem is to be fixed. An instruction that says "slowly" gets a long
    preamble, one that says "prose" no code."""
    if "prose" in asked:
        return "I would rather not."
    (fence, language, code) = _FENCED.findall(asked)[-1]
    if re.search("Fix th(is|e) problem", asked):
        code = re.sub(r",(\s*\}?\s*)$", r"\1", code)
    words = re.search(r"`(\w+)` [a-z ]*`(\w+)`", asked)
    if words is not None:
        code = re.sub(rf"\b{words[1]}\b", words[2], code)
    preamble = "Let me think. " * 3000 if "slowly" in asked else ""
    return f"{preamble}\n{fence}{language}\n{code}\n{fence}\n"


class ScriptedDaemon:
    """A process that runs this file, for the folders of one home."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home = home
        self.environment = environment
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env=self.environment,
            stdout=subprocess.PIPE,
            cwd=self.home,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def tell(self, **fields: Any) -> None:
        """What the engine's status has from now on; see `told_engine.tell`."""
        tell(self.home / "told.json", **fields)

    def status(self) -> dict[str, Any]:
        """What `pillion status` says."""
        said = subprocess.run(
            [Path(sys.executable).parent / "pillion", "status", "--json"],
            env=self.environment,
            capture_output=True,
            check=True,
        )
        return dict(json.loads(said.stdout))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> int:
    told = Path("told.json")
    engine = ToldEngine(told, reply, round_seconds=ROUND_SECONDS, context=1 << 16)
    daemon = Daemon(load_config(), EngineClient(engine))
    return asyncio.run(daemon.run(lambda _services, address: print(address.socket, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
