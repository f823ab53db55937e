"""z-lab's dflash as a peer, with a package of the same shape in its place."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from engine import BaselineReply, BaselineRequest, EngineOptions, random_drafter
from engine.targets import peer_dflash
from engine.targets.baseline import serve

PACKAGE = """
from types import SimpleNamespace

from mlx import nn

snapshot_download = None


def load_draft(name):
    folder = snapshot_download(name, allow_patterns=["*.json"])
    if "broken" in folder:
        raise KeyError("rope_theta")
    model = nn.Module()
    model.folder = folder
    return model


def stream_generate(model, draft, tokenizer, prompt, max_tokens=256):
    ends = sorted(tokenizer.eos_token_ids)
    for tokens in ([7], [8, 9], [prompt[0]], ends[:1], []):
        yield SimpleNamespace(tokens=tokens)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "package" / "dflash"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "model_mlx.py").write_text(PACKAGE)
    monkeypatch.setattr(peer_dflash, "official_dflash", lambda: folder.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("dflash", "dflash.model_mlx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("dflash", "dflash.model_mlx"):
        sys.modules.pop(name, None)


def answers(drafter: Path, *requests: BaselineRequest) -> list[BaselineReply]:
    replies = BytesIO()
    messages = (EngineOptions(draft=str(drafter)), *requests)
    serve(map(msgspec.json.encode, messages), replies, "dflash")
    return [
        msgspec.json.decode(line, type=BaselineReply) for line in replies.getvalue().splitlines()
    ]


@pytest.mark.usefixtures("package")
def test_each_response_is_a_round_and_the_last_word_is_none(tmp_path: Path) -> None:
    drafter = random_drafter("builtin", tmp_path / "drafter")
    ready, reply, endless = answers(
        drafter,
        BaselineRequest(prompt=(41, 42), max_tokens=9),
        BaselineRequest(prompt=(41, 42), max_tokens=9, ignore_eos=True),
    )
    assert ready == BaselineReply()
    assert reply.tokens[:4] == endless.tokens == (7, 8, 9, 41)
    assert len(reply.tokens) == 5
    assert (reply.rounds, endless.rounds) == (3, 2)


@pytest.mark.usefixtures("package")
def test_a_drafter_that_it_does_not_load_is_named(tmp_path: Path) -> None:
    (reply,) = answers(random_drafter("builtin", tmp_path / "broken"))
    assert "dflash==0.1.0 does not load it: KeyError('rope_theta')" in reply.error


def test_without_a_drafter_there_is_nothing_to_compare() -> None:
    replies = BytesIO()
    serve([msgspec.json.encode(EngineOptions(draft="copy"))], replies, "dflash")
    assert b"there is no drafter 'copy' here" in replies.getvalue()


def test_only_known_peers_are_started() -> None:
    replies = BytesIO()
    serve([msgspec.json.encode(EngineOptions())], replies, "another")
    assert b"there are mlx_lm and dflash" in replies.getvalue()
