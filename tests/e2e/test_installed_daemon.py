"""The installed command, its daemon and the built-in model, from start to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from installed import Installed, alive


@pytest.fixture
def user() -> Iterator[Installed]:
    user = Installed()
    yield user
    user.close()


def frame(method: str, request_id: int | None = None, **params: Any) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if request_id is not None:
        message["id"] = request_id
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def read_frame(stream: IO[bytes]) -> dict[str, Any]:
    header = stream.readline()
    assert header.startswith(b"Content-Length: "), header
    length = int(header.split(b":")[1])
    while stream.readline().strip():
        pass
    message: dict[str, Any] = json.loads(stream.read(length))
    return message


class Editor:
    """A `pillion lsp` with somebody at its other end."""

    def __init__(self, user: Installed, cwd: Path | None = None) -> None:
        self.process = user.start("lsp", cwd=cwd)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stderr = self.process.stderr

    def write(self, *frames: bytes) -> None:
        self.stdin.write(b"".join(frames))
        self.stdin.flush()

    def initialize(self) -> dict[str, Any]:
        self.write(frame("initialize", 1, capabilities={}), frame("initialized"))
        return read_frame(self.stdout)

    def end(self) -> int:
        """Shut down as editors do; what follows the last answer must be nothing."""
        self.write(frame("shutdown", 2), frame("exit"))
        assert read_frame(self.stdout)["result"] is None
        assert self.stdout.read() == b""
        return self.close()

    def close(self) -> int:
        with self.stdout, self.stderr:
            self.stdin.close()
            return self.process.wait(30)


HOSTILE = [
    "sidecar",
    "engine",
    "metal",
    "mlx",
    "mlx_lm",
    "typer",
    "rich",
    "msgspec",
    "uvicorn",
    "starlette",
    "uvloop",
    "json",
    "asyncio",
    "socket",
    "encodings",
    "sitecustomize",
    "usercustomize",
    "numpy",
    "tokenizers",
    "transformers",
]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A workspace whose modules leave a mark when they are run."""
    for name in HOSTILE:
        mark = f"open({str(tmp_path / 'RAN')!r}, 'a').write({name!r})\n"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(mark)
        (tmp_path / f"{name}.py").write_text(mark)
    subprocess.run([sys.executable, "-c", "import mlx"], cwd=tmp_path, check=True)
    (tmp_path / "RAN").unlink()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'pillion'\n")
    (tmp_path / "config.toml").write_text("[http]\nport = 1\n")
    return tmp_path


def test_a_life_in_a_hostile_workspace(user: Installed, hostile: Path) -> None:
    def ok(*arguments: str) -> str:
        done = user.run(*arguments, cwd=hostile)
        assert done.returncode == 0, done.stderr
        return done.stdout

    lines = ok("serve", "--detach", "--wait", "--json").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["listening", "ready"]
    status = json.loads(ok("status", "--json"))
    assert status["exactness"]["exact"] is True
    editor = Editor(user, cwd=hostile)
    assert "inlineCompletionProvider" in editor.initialize()["result"]["capabilities"]
    assert editor.end() == 0
    reply = json.loads(ok("generate", "Write a loop.", "--max-tokens", "8", "--json"))
    assert reply["usage"]["completion_tokens"] == 8
    completion = json.loads(ok("complete", "--prefix", "def add(a, b):\n    ", "--json"))
    assert completion["exact"] is True
    assert json.loads(ok("doctor", "--json"))["ok"] is True
    assert ok("stop") == f"stopped (pid {status['pid']})\n"
    wait_for(lambda: not alive(status["pid"]), "the process ends")
    assert left_over(user) == ["daemon.lock", "start.lock"]
    assert not (hostile / "RAN").exists()


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def left_over(user: Installed) -> list[str]:
    return sorted(path.name for path in user.runtime.iterdir())


@pytest.mark.slow
def test_editors_share_a_daemon_lose_it_and_get_another(user: Installed) -> None:
    # None finds a daemon when it looks first.
    editors = [Editor(user) for _ in range(3)]
    for editor in editors:
        assert "capabilities" in editor.initialize()["result"]
    first = user.address()["pid"]
    assert user.json("status")["pid"] == first
    assert editors[0].end() == 0
    # An editor that just leaves.
    assert editors[1].close() == 0
    os.kill(first, signal.SIGKILL)
    left = editors[2]
    assert left.stdout.read() == b""
    assert left.process.wait(30) == 1
    assert b"the daemon went away" in left.stderr.read()
    left.close()
    assert user.run("status").returncode == 1
    assert user.run("lsp", "--no-start").returncode == 1
    # It takes over the socket that the dead one left.
    again = Editor(user)
    assert "capabilities" in again.initialize()["result"]
    assert user.address()["pid"] != first
    assert again.end() == 0


def serving(user: Installed, *arguments: str) -> subprocess.Popen[bytes]:
    process = user.start("serve", "--json", *arguments)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "listening"
    return process


@pytest.mark.slow
def test_a_signal_ends_a_loading_daemon(user: Installed) -> None:
    process = serving(user)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert b"Traceback" not in said
    assert left_over(user) == ["daemon.lock"]


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once_and_harms_nothing(user: Installed) -> None:
    process = serving(user)
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    while b"SIGTERM: stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "daemon.json" in left_over(user)
    assert user.run("status").returncode == 1
    assert json.loads(user.ok("serve", "--detach", "--json"))["event"] == "listening"


@pytest.mark.slow
def test_a_long_reply_does_not_hold_up_the_end(user: Installed) -> None:
    process = serving(user)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "ready"
    message = {"role": "user", "content": "Count for ever."}
    body = {"messages": [message], "max_tokens": 3500, "ignore_eos": True, "stream": True}
    # Without drafts, which make it short: text that goes on like this repeats itself.
    body["draft"] = False
    request = urllib.request.Request(
        f"{user.json('status')['url']}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.readline().startswith(b"data: ")
        process.send_signal(signal.SIGINT)
        rest = reply.read()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert b'"error"' in rest
    assert b"Traceback" not in said


@pytest.mark.slow
def test_a_model_that_is_not_there(user: Installed) -> None:
    done = user.run("serve", "--model", "./none")
    assert done.returncode == 3
    assert "none" in done.stderr
    assert "pillion models" in done.stderr
    assert "Traceback" not in done.stderr
    detached = user.run("serve", "--detach", "--wait", "--model", "./none")
    assert detached.returncode == 3
    assert "none" in detached.stderr


@pytest.mark.slow
def test_a_daemon_that_cannot_start_says_why_in_the_background_too(user: Installed) -> None:
    blocker = subprocess.Popen(
        [
            "python3",
            "-c",
            "import socket; s = socket.create_server(('127.0.0.1', 0));"
            "print(s.getsockname()[1], flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert blocker.stdout is not None
    port = blocker.stdout.readline().decode().strip()
    done = user.run("serve", "--detach", "--port", port)
    blocker.communicate()
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken by another program" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.slow
def test_local_needs_no_daemon(user: Installed) -> None:
    reply = user.json("generate", "Write a loop.", "--local", "--max-tokens", "8", "--seed", "3")
    assert reply["usage"]["completion_tokens"] == 8
    completion = user.json("complete", "--local", "--prefix", "def add(a, b):\n    ")
    assert completion["exact"] is True
    assert user.run("status").returncode == 1
