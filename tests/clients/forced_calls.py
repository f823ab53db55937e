"""A proxy in front of the daemon that asks for what agents do not ask for: that the model begin
with a call to read a file, which it would be too small to think of itself, and then answer. What a
model of this size would call of its own accord, such as a shell, is better not run."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

READ = {"type": "function", "function": {"name": "read"}}


@contextlib.contextmanager
def forced_calls(url: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(the proxy's URL, the bodies that came). url: the daemon's, without a path."""
    bodies: list[dict[str, Any]] = []
    # Through no proxy: the daemon is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Forward(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            answered = any(message["role"] == "tool" for message in body["messages"])
            if body.get("tools"):
                body = body | {"tool_choice": "none" if answered else READ}
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
                while piece := answer.read1():
                    self.wfile.write(piece)
                    self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        server.shutdown()
