"""A model hub on loopback: the parts of the Hugging Face HTTP API that a download uses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """repositories: name to folder. cut: files whose first transfer breaks off before its end.
    gated: names that want an account. seen: every request, ``METHOD path``."""

    url: str
    repositories: dict[str, Path] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)

    def commit(self, name: str) -> str:
        return hashlib.sha1(name.encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers from the `hub` of its server."""

    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        assert isinstance(self.server, HubServer)
        return self.server.hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.seen.append(f"{self.command} {path}")
        api = path.startswith("/api/models/")
        words = path.removeprefix("/api/models/").strip("/").split("/")
        name, rest = "/".join(words[:2]), words[2:]
        folder = self.hub.repositories.get(name)
        if folder is None:
            return self.fail(401, "RepoNotFound", "Repository not found")
        if name in self.hub.gated:
            return self.fail(403, "GatedRepo", "Access is restricted")
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in ("main", "v1", self.hub.commit(name)):
            return self.fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if api and rest[0] == "tree":
            return self.send_json([self.entry(file) for file in sorted(folder.iterdir())])
        if api:
            siblings = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
            return self.send_json(
                {"id": name, "modelId": name, "sha": self.hub.commit(name), "siblings": siblings}
            )
        file = folder / "/".join(rest[2:])
        if not file.is_file():
            return self.fail(404, "EntryNotFound", "Entry not found")
        return self.send_file(file, name, body=body)

    def entry(self, file: Path) -> dict[str, object]:
        digest = hashlib.sha1(file.read_bytes()).hexdigest()
        return {
            "type": "file",
            "path": file.name,
            "size": file.stat().st_size,
            "oid": digest,
        }

    def fail(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_json(self, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def send_file(self, file: Path, name: str, *, body: bool) -> None:
        content = file.read_bytes()
        start = 0
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes="):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            self.hub.seen.append(f"RESUME {file.name} {start}")
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.hub.commit(name))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if not body:
            return
        if file.name in self.hub.cut:
            self.hub.cut.discard(file.name)
            self.wfile.write(content[start : len(content) * 4 // 5])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(content[start:])


class HubServer(ThreadingHTTPServer):
    """Serves one hub on a free port of loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = Hub(f"http://127.0.0.1:{self.server_port}")


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """The hub runs until the context ends."""
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
