"""``pillion bench fim`` with a scripted engine: what is filled in, what is printed and written."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from engine import EngineClient, EngineError, EngineOptions
from engine.testing import FakeEngine
from sidecar.cli import bench_fim
from sidecar.cli.bench_fim import FimSettings, fim
from sidecar.jobs.fim_benchmark import PREFIX_ONLY, FimRow, holes

SOURCE = "def f(a, b):\n    total = a + b\n    return total\n"


def package(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "a.py").write_text(SOURCE)
    return folder


def reply(request):
    """Right with a suffix, wrong without one."""
    in_the_middle = any(token > 255 for token in request.prompt)
    return "total = a + b\n    return total" if in_the_middle else "    return a"


async def test_it_fills_with_the_product_and_with_the_prefix_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        bench_fim, "held_out_folders", lambda: ({"package": package(tmp_path)}, ["package"])
    )
    backend = FakeEngine(reply)
    monkeypatch.setattr(bench_fim, "engine_client", lambda options: EngineClient(backend))

    async def llama(asked):
        return FimRow(
            system="llama.cpp, prefix only",
            model="small",
            holes=len(asked),
            exact_match=0.0,
            edit_similarity=0.25,
            first_line=0.0,
            empty=0,
        )

    monkeypatch.setattr(bench_fim, "_llama", llama)
    path = tmp_path / "out.json"
    found = await fim(EngineOptions(model="fake"), FimSettings(json=path))
    assert (found["holes"], found["exact_match"], found["edit_similarity"]) == (1, 1.0, 1.0)
    assert found["baselines"][f"{PREFIX_ONLY}, fake"]["exact_match"] == 0.0
    assert found["baselines"]["llama.cpp, prefix only, small"]["edit_similarity"] == 0.25
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1]) == found
    assert "100.0%" in printed
    report = json.loads(path.read_text())
    assert report["figures"] == found
    assert report["held_out_code"] == ["package"]
    # Both see the text before the hole, the prefix alone as plain text.
    plain = bytes(backend.seen[1].prompt).decode()
    assert plain == "def f(a, b):\n"
    assert backend.seen[1].must_start_with == "    "


async def test_a_peer_that_is_absent_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_fim, "held_out_folders", lambda: ({"package": package(tmp_path)}, []))
    monkeypatch.setattr(bench_fim, "engine_client", lambda options: EngineClient(FakeEngine(reply)))

    async def llama(asked):
        raise EngineError("no wheel for this machine")

    monkeypatch.setattr(bench_fim, "_llama", llama)
    found = await fim(EngineOptions(model="fake"), FimSettings())
    assert list(found["baselines"]) == [f"{PREFIX_ONLY}, fake"]
    assert "llama.cpp: not measured: no wheel for this machine" in capsys.readouterr().out


@pytest.fixture
def peer():
    """A server that streams pieces as llama.cpp does: its port, the pieces, what it was sent."""
    pieces, asked = [], []

    class Peer(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(b"data: %b\n\n" % json.dumps(piece).encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Peer)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server.server_port, pieces, asked
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.mark.parametrize("rest", [[], [{"content": "", "stop": True, "stop_type": "eos"}]])
def test_what_a_peer_streams_is_read_until_it_is_decided(tmp_path, peer, rest):
    (hole,) = holes({"package": package(tmp_path)}, 1)
    port, pieces, asked = peer
    pieces += [{"content": "total = a"}, {"content": " + b\n    return total\n"}, *rest]
    if rest:
        assert bench_fim._continued_by_llama(port, hole) == hole.middle
    else:
        with pytest.raises(EngineError, match="broke off"):
            bench_fim._continued_by_llama(port, hole)
        pieces += [{"content": "def g():\n"}]
        assert bench_fim._continued_by_llama(port, hole) == hole.middle
    assert asked[0]["prompt"] == "def f(a, b):\n    "
