"""`pillion setup` and `pillion doctor --client`, for a running daemon with the shipped fake."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest
from pillion_command import Pillion

from engine import EngineClient, EngineStatus, Totals
from engine.testing import FakeEngine
from sidecar.cli import client_check
from sidecar.cli.private_daemon import daemon_in_thread
from sidecar.config import Config
from sidecar.runtime_dir import Address

# Asks what its configuration says, as the real one does.
PI = """#!{python}
import fcntl, json, os, subprocess, sys, urllib.request
if sys.argv[1] == "--version":
    sys.exit(print("1.2.3"))
providers = json.load(open(os.environ["HOME"] + "/.pi/agent/models.json"))["providers"]
body = json.dumps({{"messages": [{{"role": "user", "content": sys.argv[-1]}}]}}).encode()
if "wrapped" in sys.argv[0]:
    held = open(os.environ["HOME"] + "/held", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.run(sleep, pass_fds=[held.fileno()])
if "silent" not in sys.argv[0]:
    urllib.request.urlopen(urllib.request.Request(
        providers["pillion"]["baseUrl"] + "/chat/completions", body,
        {{"Content-Type": "application/json"}})).read()
sys.exit({code})
"""


class CountingEngine(FakeEngine):
    def status(self) -> EngineStatus:
        totals = Totals(requests=len(self.seen))
        return msgspec.structs.replace(super().status(), totals=totals)


@pytest.fixture
def daemon(settings: Config) -> Iterator[Address]:
    with daemon_in_thread(settings, EngineClient(CountingEngine("ok"))) as address:
        yield address


@pytest.fixture
def install_pi(monkeypatch: pytest.MonkeyPatch, home: Path):
    """`install_pi(code, folder)`: a pi that ends with `code`, in PATH."""

    def install(code: int = 0, folder: str = "bin") -> None:
        program = home / folder / "pi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(PI.format(python=sys.executable, code=code))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return install


def test_nothing_is_written_without_a_yes(pillion: Pillion, daemon: Address, home: Path) -> None:
    done = pillion("setup", "pi")
    assert f'+      "baseUrl": "{daemon.url}/v1",' in done.out
    assert "pi --provider pillion --model fake" in done.out
    assert "nothing was written" in done.err
    assert not (home / ".pi").exists()
    printed = pillion("setup", "pi", "--print")
    assert json.loads(printed.out.partition("\n")[2])["providers"]["pillion"]["models"]
    assert not (home / ".pi").exists()


def test_written_once_it_is_settled(pillion: Pillion, daemon: Address, home: Path) -> None:
    facts = pillion("setup", "pi", "--yes", "--json").json
    path = home / ".pi/agent/models.json"
    assert facts["written"]
    assert facts["files"][0]["path"] == str(path)
    assert path.read_text() == facts["files"][0]["text"]
    assert "set up already" in pillion("setup", "pi", "--yes").err


def test_a_context_too_small_is_said(pillion: Pillion, daemon: Address) -> None:
    assert "begins with about 19800 tokens" in pillion("setup", "claude").err


def test_an_unknown_client_and_no_daemon(pillion: Pillion) -> None:
    done = pillion("setup", "emacs")
    assert done.code == 2
    assert "opencode, codex, claude" in done.err
    done = pillion("setup", "pi")
    assert done.code == 1
    assert "pillion serve" in done.err
    done = pillion("doctor", "--client", "pi")
    assert done.code == 1
    assert "no daemon is running" in done.out


def test_a_client_that_works(pillion: Pillion, daemon: Address, install_pi) -> None:
    install_pi()
    pillion("setup", "pi", "--yes")
    report = pillion("doctor", "--client", "pi", "--json").json
    checks = {check["name"]: check for check in report["checks"]}
    assert list(checks) == ["daemon", "program", "setup", "context", "endpoint", "reply"]
    assert "1.2.3" in checks["program"]["detail"]
    assert "asked 1 times" in checks["reply"]["detail"]


@pytest.mark.parametrize(
    ("code", "folder", "said"), [(3, "bin", "ended with 3"), (0, "silent", "did not ask")]
)
def test_a_client_that_does_not(
    pillion: Pillion, daemon: Address, install_pi, code: int, folder: str, said: str
) -> None:
    install_pi(code, folder)
    pillion("setup", "pi", "--yes")
    done = pillion("doctor", "--client", "pi")
    assert done.code == 1
    assert said in done.out


def test_a_client_that_does_not_end_is_ended_with_what_it_started(
    pillion: Pillion, daemon: Address, install_pi, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_check, "CLIENT_SECONDS", 0.3)
    install_pi(folder="wrapped")
    pillion("setup", "pi", "--yes")
    assert "gave no answer" in pillion("doctor", "--client", "pi").out
    with (home / "held").open("w") as held:
        # At once, but for the time in which a killed process goes.
        deadline = time.monotonic() + 20
        while not _free(held) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert _free(held)


def _free(held: IO[str]) -> bool:
    """Whether nobody holds it, who is then we."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_what_is_missing_is_named(
    pillion: Pillion, daemon: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = pillion("doctor", "--client", "pi")
    assert done.code == 1
    assert "install pi" in done.out
    assert "`pillion setup pi`" in done.out
    assert "reply" not in done.out
