"""Questions to another implementation's cache, asked of a server whose cache is a list."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine import EngineError
from sidecar.cli.bench_cache_peers import MLX_LM_SERVER, lines_table
from sidecar.jobs.cache_elsewhere import branched_elsewhere, complete, typed_elsewhere


class Characters(http.server.BaseHTTPRequestHandler):
    """A token is a character; what it saw before is cached up to a multiple of `block`."""

    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, reply = self.server.answer(body)
        said = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


class Server(http.server.ThreadingHTTPServer):
    block = 1
    wrong = False
    broken: tuple[int, Any] | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Characters)
        self.seen: list[str] = []

    def answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.broken:
            return self.broken
        prompt = body["prompt"]
        cached = max((common(prompt, other) for other in self.seen), default=0)
        cached = min(cached - cached % self.block, len(prompt) - 1)
        if body.get("cache_prompt") is False:
            cached = 0
        self.seen.append(prompt)
        text = "stale" if self.wrong and cached > 50 else prompt[-3:]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"]}
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return 200, {"choices": [{"text": text}], "usage": usage}


def common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_what_a_key_and_an_edit_cost(server: Server) -> None:
    steps: list[int] = []
    typed = typed_elsewhere(server.server_port, "m", 12, lambda: steps.append(1))
    assert typed.extra <= 1
    assert typed.edited == 0
    assert len(steps) == 13
    coarse = server.block = 64
    server.seen.clear()
    typed = typed_elsewhere(server.server_port, "m", 12, lambda: None)
    assert 0 < typed.extra < coarse


def test_replies_that_depend_on_the_cache_are_counted(server: Server) -> None:
    assert branched_elsewhere(server.server_port, "m", 8, lambda: None) == 0
    server.wrong = True
    assert branched_elsewhere(server.server_port, "m", 8, lambda: None) > 0


@pytest.mark.parametrize(
    ("broken", "said"), [((500, b"out of memory"), "out of memory"), ((200, {"a": 1}), "no compl")]
)
def test_a_server_that_fails_is_quoted(server: Server, broken: Any, said: str) -> None:
    server.broken = broken
    with pytest.raises(EngineError, match=said):
        complete(server.server_port, "m", "a")
    port = server.server_port
    server.server_close()
    with pytest.raises(EngineError, match="/v1/completions"):
        complete(port, "m", "a")


def test_what_cannot_be_measured_is_said_in_the_table() -> None:
    figures = {"branchings": 5, "mlx_lm_server_keystroke_max_extra_tokens": 1}
    table = lines_table(figures)
    assert table.row_count == 2
    *_, branchings, differences = [list(column.cells) for column in table.columns]
    assert list(table.columns[0].cells) == ["pillion", MLX_LM_SERVER]
    assert branchings == ["5", "its cache cannot be turned off for a request"]
    assert differences[0] == ""
