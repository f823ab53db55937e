"""A server that speaks as much of OpenAI's chat as a race needs, and fails in known ways:
``fake_openai.py PORT MODE``."""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECES = ["def ", "total", "(): ", "pass"]


class Handler(BaseHTTPRequestHandler):
    mode = "good"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(503 if self.mode == "never ready" else 200, b"{}")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.mode == "dies":
            print("out of memory", flush=True)
            os._exit(7)
        if self.mode == "refuses":
            self._answer(400, b'{"error": {"message": "no such model"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self._stream(asked)

    def _stream(self, asked: dict[str, object]) -> None:
        if self.mode == "garbage":
            self.wfile.write(b"data: {not json\n\n")
            return
        if self.mode == "error":
            self._event({"error": {"message": "the model fell over"}})
            return
        if self.mode == "hangs":
            while True:
                self.wfile.write(b": heartbeat\n\n")
                time.sleep(0.1)
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        # What a speculative server says that is not exact.
        pieces = PIECES[::-1] if self.mode == "inexact" and not asked.get("plain") else PIECES
        if self.mode == "calls":
            call = {"index": 0, "function": {"name": "ls", "arguments": "{}"}}
            self._event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
        for piece in pieces if self.mode not in ("mute", "calls") else []:
            self._event({"choices": [{"index": 0, "delta": {"content": piece}}]})
        if self.mode != "counts nothing":
            usage = {
                "prompt_tokens": 70,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            timings = {"prompt_ms": 500.0, "predicted_per_second": 20.0, "draft_n": 3}
            more = {"timings": timings} if self.mode == "own clock" else {}
            self._event({"choices": [], "usage": usage, **more})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, chunk: object) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what is printed is what a test looks for."""


def main() -> None:
    Handler.mode = sys.argv[2]
    if Handler.mode == "does not start":
        sys.exit("ImportError: no module named metal")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
