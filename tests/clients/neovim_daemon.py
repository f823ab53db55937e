"""A whole daemon, doors and all, whose model a test tells what to say, in a process of its own.

`ScriptedDaemon` starts one; run as a program, this file is that process.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from told_engine import ToldEngine, tell

from engine import EngineClient, GenerateRequest
from engine.testing import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX
from sidecar.config import load_config
from sidecar.daemon import Daemon


class ScriptedDaemon:
    """home: the folder whose environment (see `private_environment`) the daemon and its clients
    share; gone after `stop`. round_seconds: how long a token takes. told: as for `tell`."""

    def __init__(
        self, home: Path, environment: dict[str, str], round_seconds: float = 0.0, **told: Any
    ) -> None:
        self._script = home / "script.json"
        self._home = home
        self._seconds = round_seconds
        self.environment = environment
        self.say()
        self.tell(**told)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, self._script, str(self._seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=self.environment,
            cwd=self._home,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            self.kill()
            raise AssertionError("the daemon did not start")

    def say(
        self,
        *complete: str,
        alternatives: tuple[str, ...] = (),
        edit: tuple[tuple[str, str], ...] = (),
        explain: str = "",
    ) -> None:
        """What the model answers from now on. complete: texts; where the cursor stands in one, the
        rest of it is the suggestion. alternatives: what sampling finds. edit: patterns and what to
        write in their place. explain: the answer where there is nothing to edit."""
        script = {
            "complete": complete,
            "alternatives": alternatives,
            "edit": edit,
            "explain": explain,
        }
        fresh = self._script.with_suffix(".new")
        fresh.write_text(json.dumps(script))
        fresh.replace(self._script)

    def tell(self, **fields: Any) -> None:
        """What the engine's status has from now on; see `told_engine.tell`."""
        tell(self._script.with_name("told.json"), **fields)

    def kill(self) -> None:
        """As the system does when memory runs out."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        """It ends cleanly, whatever its clients did."""
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(60) == 0
        finally:
            self.kill()
            shutil.rmtree(self._home, ignore_errors=True)


def text_of(tokens: Any) -> str:
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


def completion(request: GenerateRequest, script: dict[str, Any]) -> str:
    """The rest of the text that the cursor is in; it has at least three characters of it before."""
    tokens = list(request.prompt)
    before = text_of(tokens[tokens.index(FIM_PREFIX) + 1 : tokens.index(FIM_SUFFIX)])
    before += text_of(tokens[tokens.index(FIM_MIDDLE) + 1 :])
    for text in script["complete"]:
        for end in range(len(text), 2, -1):
            if before.endswith(text[:end]):
                if request.sampling.temperature > 0 and script["alternatives"]:
                    others = script["alternatives"]
                    return str(others[(request.seed or 0) % len(others)])
                return str(text[end:])
    return ""


def answers(script: Path) -> Callable[[GenerateRequest], str]:
    def answer(request: GenerateRequest) -> str:
        said = json.loads(script.read_text())
        if FIM_MIDDLE in request.prompt:
            return completion(request, said)
        found = re.search(r"\n(`{3,})([a-z]*)\n(.*)\n\1", text_of(request.prompt), re.DOTALL)
        if found is None or not said["edit"]:
            return str(said["explain"])
        code = found[3]
        for pattern, replacement in said["edit"]:
            code = re.sub(pattern, replacement, code)
        return f"{found[1]}{found[2]}\n{code}\n{found[1]}"

    return answer


def main(script: Path, round_seconds: float) -> int:
    told = script.with_name("told.json")
    backend = ToldEngine(told, answers(script), round_seconds=round_seconds)
    daemon = Daemon(load_config({"http.port": 0}), EngineClient(backend))
    return asyncio.run(daemon.run(lambda *_: print("ready", flush=True)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
