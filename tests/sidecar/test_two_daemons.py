"""Two daemon processes on one folder of the prefix cache: one writes, both read, and when the
writer is killed the other one takes over."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from private_home import private_environment, short_folder

SCRIPT = Path(sys.executable).parent / "pillion"
SECONDS = 120.0
RULES = "Answer in one word. " + " ".join(f"Rule {n} is rule {n * 7}." for n in range(60))


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, f"the daemon ended with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.05)


class OneOfTwo:
    """A daemon with a runtime folder of its own; the cache's folder is the home's."""

    def __init__(self, home: Path, name: str) -> None:
        self._runtime = home / name
        environment = private_environment(home) | {
            "PILLION_HTTP_PORT": "0",
            "PILLION_DAEMON_RUNTIME_DIR": str(self._runtime),
            "PILLION_ENGINE_AUDIT": "false",
        }
        with (home / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [SCRIPT, "serve"], cwd=home, env=environment, stdout=log, stderr=log
            )
        address = self._runtime / "daemon.json"
        until(lambda: self._of(address) == self.process.pid, self.process)
        self._url = json.loads(address.read_text())["url"]
        until(lambda: self.cache()["disk_state"] not in ("off", "opening"), self.process)

    @staticmethod
    def _of(address: Path) -> int:
        """Whose address that is."""
        try:
            return int(json.loads(address.read_text())["pid"])
        except (OSError, ValueError):
            return 0

    def cache(self) -> dict[str, Any]:
        """The status of its cache; off until there is one."""
        request = urllib.request.Request(
            f"{self._url}/metrics", headers={"Accept": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            found: dict[str, Any] = json.load(answer).get("cache") or {"disk_state": "off"}
        return found

    def ask(self, question: str) -> dict[str, Any]:
        """What there is to know of a greedy reply: its `token_hash`, and its `cache`."""
        messages = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": 12, "temperature": 0}
        request = urllib.request.Request(
            f"{self._url}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)["pillion"]
        return found

    def until_warm(self) -> None:
        """Wait until what was used most is back from disk."""
        until(lambda: self.cache()["nodes"] > 0, self.process)

    def until_writing(self) -> None:
        until(lambda: self.cache()["disk_state"] == "writing", self.process)

    def end(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(SECONDS)


@pytest.fixture
def started() -> Iterator[Callable[[str], OneOfTwo]]:
    """Starts daemons of one home, by the names of their runtime folders."""
    home, running = short_folder(), list[OneOfTwo]()

    def start(name: str) -> OneOfTwo:
        running.append(OneOfTwo(home, name))
        return running[-1]

    yield start
    for daemon in running:
        daemon.end(signal.SIGTERM)
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.slow
def test_a_writer_is_killed_and_the_reader_takes_over(started: Callable[[str], OneOfTwo]) -> None:
    """Whoever answers and wherever the prompt's state came from, the reply is the same."""
    writer = started("a")
    assert writer.cache()["disk_state"] == "writing"
    replies = {"start": writer.ask("start")["token_hash"]}
    until(lambda: writer.cache()["disk_files"] > 0, writer.process)
    reader = started("b")
    assert reader.cache()["disk_state"] == "reading"
    reader.until_warm()
    told = reader.ask("start")
    assert (told["token_hash"], told["cache"]["kind"]) == (replies["start"], "restart")
    assert told["cache"]["disk"] > 100
    for number in range(3):
        question = f"question {number}"
        replies[question] = writer.ask(question)["token_hash"]
        # In the middle of whatever it is writing.
        writer.end(signal.SIGKILL)
        writer = reader
        writer.until_writing()
        for asked, reply in replies.items():
            assert writer.ask(asked)["token_hash"] == reply
        reader = started(f"c{number}")
        assert reader.cache()["disk_state"] == "reading"
        reader.until_warm()
        told = reader.ask("start")
        assert told["token_hash"] == replies["start"]
        assert told["cache"]["disk"] + told["cache"]["memory"] > 100
        for daemon in (writer, reader):
            dropped = {one["reason"] for one in daemon.cache()["evictions"]}
            assert not dropped & {"damaged", "foreign"}
    folder = Path(writer.cache()["disk_folder"])
    files = list(folder.glob("*.safetensors"))
    assert files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
