"""A proxy in front of the daemon that asks for what agents do not ask for: that the model make the
calls of a task, which it would be too small to think of itself, and then answer. Each call is held
to the agent's own schema of the tool, with fewer values where they matter: what a model of this
size would call of its own accord, such as a shell, is better not run."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct


class Step(Struct, frozen=True):
    """A call that has to be made. arguments: the values that each of these may have."""

    tool: str
    arguments: Mapping[str, Sequence[Any]]


class Turn(Struct):
    """A request of the agent's that had tools, and what became of it. usage: of the reply."""

    body: dict[str, Any]
    text: str = ""
    calls: list[dict[str, Any]] = []
    finish_reason: str = ""
    usage: dict[str, Any] = {}

    def take(self, line: bytes) -> None:
        """A line of the reply's stream."""
        if not line.startswith(b"data: {"):
            return
        chunk = json.loads(line.removeprefix(b"data: "))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.text += choice["delta"].get("content") or ""
            self.calls += choice["delta"].get("tool_calls") or []
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    def called(self) -> dict[str, Any]:
        """The arguments of the reply's only call, from all its pieces."""
        return dict(json.loads("".join(call["function"]["arguments"] for call in self.calls)))


def forced(body: dict[str, Any], steps: Sequence[Step]) -> dict[str, Any]:
    """The request with the step that is next, or with leave to answer only."""
    done = sum(message["role"] == "tool" for message in body["messages"])
    if done >= len(steps):
        return body | {"tool_choice": "none"}
    step, tools = steps[done], json.loads(json.dumps(body["tools"]))
    for tool in tools:
        if tool["function"]["name"] == step.tool:
            properties = tool["function"]["parameters"]["properties"]
            for name, values in step.arguments.items():
                properties[name] = {"enum": list(values)}
    choice = {"type": "function", "function": {"name": step.tool}}
    return body | {"tools": tools, "tool_choice": choice}


@contextlib.contextmanager
def forced_calls(url: str, steps: Sequence[Step]) -> Iterator[tuple[str, list[Turn]]]:
    """(the proxy's URL, the turns that it saw). url: the daemon's, without a path."""
    turns: list[Turn] = []
    # Through no proxy: the daemon is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Forward(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = Turn(body)
            if body.get("tools"):
                turns.append(turn)
                body = forced(body, steps)
            request = urllib.request.Request(
                url + self.path, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                answer = opener.open(request)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.end_headers()
                for line in answer:
                    turn.take(line)
                    self.wfile.write(line)
                    self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", turns
        server.shutdown()
