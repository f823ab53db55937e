"""complete, generate and chat against a daemon with a scripted engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pillion_command import Pillion

from engine.testing import FakeEngine
from sidecar.cli.complete import offset
from sidecar.cli.terminal import shown
from sidecar.runtime_dir import Address


def test_generate(pillion: Pillion, daemon: Address, backend: FakeEngine) -> None:
    assert pillion("generate", "hello").out == "a reply\n"
    done = pillion("generate", "hello", "--max-tokens", "3", "--seed", "5", "--no-draft", "--json")
    assert done.json["text"] == "a r"
    assert done.json["finish_reason"] == "length"
    assert done.json["pillion"]["seed"] == 5
    assert backend.seen[-1].draft is False
    assert pillion("generate", "-", "--system", "be brief", stdin="naïve".encode()).code == 0
    prompt = bytes(t for t in backend.seen[-1].prompt if t < 256).decode()
    assert prompt == "system: be briefuser: naïve"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hi", "--temperature", "-1"], "temperature"),
        (["hi", "--max-tokens", "0"], "max_tokens"),
        (["hi", "--top-p", "2"], "top_p"),
        (["hi", "--stop", ""], "stop"),
        (["bad \udce9"], "not UTF-8"),
        (["x" * 5000], "maximum context length"),
    ],
)
def test_generate_refuses_by_name(
    pillion: Pillion, daemon: Address, arguments: list[str], said: str
) -> None:
    done = pillion("generate", *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


def test_chat_keeps_the_conversation(
    pillion: Pillion, daemon: Address, backend: FakeEngine
) -> None:
    lines = b"one\n\ntwo\n/reset\nthree\n/exit\nnever\n"
    done = pillion("chat", "--json", stdin=lines)
    assert [json.loads(line)["text"] for line in done.out.splitlines()] == ["a reply"] * 3
    prompts = [bytes(t for t in seen.prompt if t < 256).decode() for seen in backend.seen]
    assert prompts == ["user: one", "user: oneassistant: a replyuser: two", "user: three"]


def test_chat_with_one_message(pillion: Pillion, daemon: Address) -> None:
    assert pillion("chat", "hello").out == "a reply\n"


def test_chat_ends_on_an_error_in_a_script(pillion: Pillion, daemon: Address) -> None:
    done = pillion("chat", stdin=b"x" * 5000)
    assert done.code == 2
    assert "maximum context length" in done.err


def test_complete(pillion: Pillion, daemon: Address, backend: FakeEngine, home: Path) -> None:
    file = home / "x.py"
    file.write_bytes("a = 1\r\nb = é😀!\r\n".encode())
    assert pillion("complete", f"{file}:2:7").out == "a reply"
    assert backend.seen[-1].prompt[-1] == 259
    prompt = bytes(t if t < 256 else 0 for t in backend.seen[-1].prompt).decode()
    assert prompt == "\0a = 1\nb = é😀\0!\n\0"
    assert pillion("complete", "--prefix", "x = ", "--json").json["text"] == "a reply"
    assert pillion("complete", "-", "--suffix", ")", stdin=b"f(").out == "a reply"
    assert pillion("complete", "new.py:1:2", "--stdin", stdin=b"abc").out == "a reply"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say where"),
        (["none.py:1"], "none.py: No such file or directory"),
        (["here.py:7"], "here.py has no line 7; it has 2"),
        (["here.py:0:1"], "here.py has no line 0"),
        (["here.py:1:9"], "here.py:1 has no column 9; its last is 4"),
        (["here.py"], "is not FILE:LINE"),
        (["here.py:1", "--prefix", "x"], "not both"),
        (["here.py:1", "--suffix", "x"], "--suffix goes with"),
        (["--stdin"], "--stdin goes with"),
        (["latin.py:1"], "latin.py is not UTF-8 text (byte 0)"),
        (["--prefix", "x", "--multiline", "maybe"], "multiline"),
        (["--prefix", "x", "--max-tokens", "0"], "maxTokens"),
    ],
)
def test_complete_names_what_is_wrong(
    pillion: Pillion,
    daemon: Address,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(home)
    (home / "here.py").write_text("a=1\n")
    (home / "latin.py").write_bytes(b"\xe9")
    done = pillion("complete", *arguments)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.out == ""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_offsets(newline: str) -> None:
    text = newline.join(["ab", "", "\tc😀", ""])
    assert offset(text, 1, 1, "f") == 0
    assert offset(text, 1, None, "f") == 2
    assert offset(text, 2, None, "f") == 2 + len(newline)
    assert text[offset(text, 3, 3, "f") :] == "😀" + newline
    assert offset(text, 4, 1, "f") == len(text)


def test_without_a_daemon(pillion: Pillion) -> None:
    for verb in (("generate", "x"), ("chat", "x"), ("complete", "--prefix", "x")):
        done = pillion(*verb)
        assert done.code == 1
        assert done.err == "error: no daemon is running; `pillion serve` starts one\n"


class Terminal:
    def isatty(self) -> bool:
        return True


def test_a_reply_cannot_steer_the_terminal() -> None:
    assert shown("a\x1b[2J\x07b\r\n\tc é😀", Terminal()) == "a�[2J�b\n\tc é😀"  # type: ignore[arg-type] # only isatty is asked
