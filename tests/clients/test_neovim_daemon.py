"""The Neovim plugin and the daemon it finds, loses and finds again; how it is installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import own_environment
from embedded_neovim import BINARY, INSTALL, PLUGIN, EmbeddedNeovim
from neovim_daemon import ScriptedDaemon
from private_home import short_folder

pytestmark = pytest.mark.clients

Start = Callable[..., EmbeddedNeovim]
HEAD = "class Stack:\n    def push(self, item):\n"
APPEND = "        self.items.append(item)\n"
STATUSLINE = "set statusline=%{%v:lua.require'pillion'.statusline()%} laststatus=2"


def suggests(editor: EmbeddedNeovim) -> None:
    """A new line below the text gets its suggestion."""
    editor.keys("<Esc>Go<C-u>")
    editor.type("        self.it" if editor.cursor()[1] == 0 else "self.it")
    editor.wait_ghost("ems.append(item)")


def test_a_daemon_that_was_killed_is_found_again(scripted: ScriptedDaemon, neovim: Start) -> None:
    scripted.say(APPEND)
    # The test starts the next one.
    own = "vim.g.pillion = { cmd = { 'pillion', 'lsp', '--no-start' } }"
    editor = neovim(scripted.environment, "stack.py", HEAD, before=own)
    suggests(editor)
    scripted.kill()
    editor.wait(lambda: not editor.connected())
    editor.wait_ghost("")
    # Typing goes on as if nothing were there.
    editor.type("em = 1")
    editor.wait(lambda: editor.lines()[-1].endswith("self.item = 1"))
    scripted.start()
    editor.wait(editor.connected)
    suggests(editor)
    assert "rror" not in editor.command("messages")


def pillion(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        ["pillion", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout


def pid(environment: dict[str, str]) -> int | None:
    """The daemon's, while there is one."""
    status: dict[str, Any] = json.loads(pillion(environment, "status", "--json"))
    return status.get("pid")


def test_a_daemon_is_started_and_after_its_death_another(neovim: Start) -> None:
    """The whole of it, with the built-in model."""
    home = short_folder()
    environment = own_environment(home) | {"PILLION_HTTP_PORT": "0"}
    try:
        editor = neovim(environment, "stack.py", HEAD)
        editor.wait(lambda: editor.state() in {"ready", "target-only"})
        editor.keys("Go")
        editor.type("self.items.app")
        editor.wait(editor.ghost)
        first = pid(environment)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        # The editor's own doing: nobody else starts one.
        editor.wait(lambda: pid(environment) not in (None, first))
        editor.wait(lambda: editor.connected() and editor.state() in {"ready", "target-only"})
        editor.type("end")
        editor.wait(editor.ghost)
        editor.quit()
    finally:
        pillion(environment, "stop")
        shutil.rmtree(home, ignore_errors=True)


def test_two_editors_at_once_get_their_own(scripted: ScriptedDaemon, neovim: Start) -> None:
    scripted.say(APPEND, "    two = both\n")
    one = neovim(scripted.environment, "one.py", HEAD)
    other = neovim(scripted.environment, "other.py", "def two():\n")
    one.keys("Go")
    other.keys("Go")
    for left, right in zip("self.it", "two = b", strict=True):
        one.type(left)
        other.type(right)
    one.wait_ghost("ems.append(item)")
    other.wait_ghost("oth")
    other.quit()
    one.keys("<Tab>")
    one.wait(lambda: one.lines()[-1] == APPEND.rstrip())
    suggests(one)
    assert scripted.process.poll() is None


def test_a_model_that_is_not_there_yet_is_no_error(
    neovim: Start, home: Path, tmp_path: Path
) -> None:
    """A command that never answers: the editor works, and says what it waits for."""
    mute = tmp_path / "pillion"
    mute.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    mute.chmod(0o755)
    own = f"vim.g.pillion = {{ cmd = {{ '{mute}', 'lsp' }} }}"
    editor = neovim({"HOME": str(home)}, "stack.py", HEAD, before=own, connected=False)
    editor.command(STATUSLINE)
    editor.keys("Go")
    editor.type("self.it")
    editor.wait(lambda: editor.shows("Pillion starting"))
    editor.wait(lambda: editor.lines()[-1] == "        self.it")
    assert editor.command("messages").strip() == ""


def test_a_command_that_always_fails_is_given_up(neovim: Start, home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "pillion"
    broken.write_text("#!/bin/sh\nexit 7\n")
    broken.chmod(0o755)
    own = f"vim.g.pillion = {{ cmd = {{ '{broken}', 'lsp' }} }}"
    own += "\nlocal defer = vim.defer_fn\nvim.defer_fn = function(f) return defer(f, 1) end"
    editor = neovim({"HOME": str(home)}, "stack.py", HEAD, before=own, connected=False)
    editor.wait(lambda: editor.lua("return package.loaded['pillion.server'] ~= nil"))
    editor.wait(lambda: editor.state() == "failed")
    editor.keys(":Pillion<CR>")
    editor.wait(lambda: editor.shows("it ended 9 times in a row; see :Pillion log"))


def test_a_command_that_is_missing_is_named_once(neovim: Start, home: Path) -> None:
    own = "vim.g.pillion = { cmd = { 'no-such-pillion', 'lsp' } }"
    editor = neovim({"HOME": str(home), "PATH": "/usr/bin"}, before=own, connected=False)
    editor.wait(lambda: "no-such-pillion is not on the PATH" in editor.command("messages"))
    editor.keys("iself.it<Esc>o")
    editor.keys("<Esc>")
    assert editor.command("messages").count("no-such-pillion") == 1


def test_a_wrong_setting_is_named_and_the_others_hold(
    scripted: ScriptedDaemon, neovim: Start
) -> None:
    own = "vim.g.pillion = { debounce = 'soon', colour = 1, keys = { accept = '<C-y>' } }"
    editor = neovim(scripted.environment, "stack.py", HEAD, before=own, columns=120)
    said = editor.command("messages")
    assert "colour is no setting" in said
    assert "debounce must be milliseconds or false" in said
    scripted.say(APPEND)
    suggests(editor)
    editor.keys("<C-y>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())


def test_switching_off_is_for_a_type_or_for_all(scripted: ScriptedDaemon, neovim: Start) -> None:
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.command("Pillion disable python")
    assert not editor.connected()
    asked = editor.asked()
    editor.keys("Go")
    editor.type("self.it")
    editor.let_pauses_end()
    assert editor.asked() == asked
    editor.keys("<Esc>")
    editor.command("Pillion enable python")
    editor.wait(editor.connected)
    suggests(editor)
    editor.keys("<Esc>")
    assert "off" in editor.command("Pillion toggle")
    editor.wait(lambda: editor.lua("return #vim.lsp.get_clients({ name = 'pillion' })") == 0)
    assert "on" in editor.command("Pillion toggle")
    editor.wait(editor.connected)
    suggests(editor)


def test_the_statusline_and_the_status_window(scripted: ScriptedDaemon, neovim: Start) -> None:
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.command(STATUSLINE)
    editor.wait(lambda: editor.shows("Pillion fake"))
    editor.keys(":Pillion status<CR>")
    editor.wait(lambda: editor.shows("buffer     attached"))
    editor.wait(lambda: editor.shows(f"pid {scripted.process.pid}"))
    editor.keys("q")
    assert editor.lua("return vim.fn.bufname()").endswith("stack.py")
    verbs = editor.lua("return vim.fn.getcompletion('Pillion re', 'cmdline')")
    assert verbs == ["refactor", "restart"]
    editor.keys(":Pillion nonsense<CR>")
    editor.wait(lambda: editor.shows("no verb"))
    editor.keys("<CR>")


def test_the_log_is_the_daemons(scripted: ScriptedDaemon, neovim: Start) -> None:
    log = Path(scripted.environment["XDG_STATE_HOME"]) / "pillion/daemon.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("what it said\n")
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.keys(":Pillion log<CR>")
    editor.wait(lambda: editor.lines()[0] == "what it said")


def test_checkhealth_finds_everything_in_order(scripted: ScriptedDaemon, neovim: Start) -> None:
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.command("checkhealth pillion")
    report = "\n".join(editor.lines())
    assert "ERROR" not in report
    assert "settings are valid" in report
    assert f"(pid {scripted.process.pid}) is ready" in report
    assert "1 buffers are attached" in report


def test_help_has_every_setting_verb_and_mapping(scripted: ScriptedDaemon, neovim: Start) -> None:
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.command("helptags ALL")
    editor.command("help pillion")
    text = "\n".join(editor.lines())
    settings = editor.lua("return vim.tbl_keys(require('pillion.config').get())")
    verbs = editor.lua("return require('pillion.command').complete('', 'Pillion ', 8)")
    for name in [*settings, *(f"Pillion {verb}" for verb in verbs)]:
        assert name in text, name
    assert text.count("<Plug>(pillion-") >= 7
    editor.command("help :Pillion")
    editor.command("help pillion-settings")


def test_it_is_a_plain_package_that_needs_no_setup(scripted: ScriptedDaemon, neovim: Start) -> None:
    packages = Path(scripted.environment["XDG_DATA_HOME"]) / "nvim/site/pack/any/start"
    packages.mkdir(parents=True)
    (packages / "pillion").symlink_to(PLUGIN)
    scripted.say(APPEND)
    editor = neovim(
        scripted.environment,
        "stack.py",
        HEAD,
        plugin=False,
        before="vim.opt.packpath:prepend(vim.fn.stdpath('data') .. '/site')",
    )
    suggests(editor)
    shutil.rmtree(packages)


def test_a_plugin_manager_may_load_it_late(scripted: ScriptedDaemon, neovim: Start) -> None:
    """As lazy.nvim does it: the folder joins the runtimepath after the start, then `setup`."""
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "stack.py", HEAD, plugin=False, connected=False)
    editor.lua(
        """
        vim.opt.rtp:prepend(...)
        vim.cmd.runtime("plugin/pillion.lua")
        require("pillion").setup({ keys = { accept = "<C-y>" } })
        """,
        str(PLUGIN),
    )
    editor.keys("Go")
    editor.wait(editor.connected)
    suggests(editor)
    editor.keys("<C-y>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())


def test_core_inline_completion_is_left_to_neovim_where_it_is_wanted(
    scripted: ScriptedDaemon, neovim: Start
) -> None:
    """Neovim 0.12's own, faked: it is told to show ours, or not to."""
    own = """
    Told = {}
    vim.lsp.inline_completion = { enable = function(on, filter)
      table.insert(Told, { on = on, client = vim.lsp.get_client_by_id(filter.client_id).name })
    end }
    """
    editor = neovim(scripted.environment, "stack.py", HEAD, before=own)
    assert editor.lua("return Told") == [{"on": False, "client": "pillion"}]
    own += "vim.g.pillion = { core_inline_completion = true }"
    editor = neovim(scripted.environment, "stack.py", HEAD, before=own)
    assert editor.lua("return Told") == [{"on": True, "client": "pillion"}]
    asked = editor.asked()
    editor.keys("Go")
    editor.type("self.it")
    editor.let_pauses_end()
    assert editor.asked() == asked


def test_the_start_loads_names_only(scripted: ScriptedDaemon) -> None:
    loaded = subprocess.run(
        [
            *(BINARY, "--headless", "--clean", "-n", "--cmd", f"set rtp^={PLUGIN}"),
            "-c",
            "lua io.write(table.concat(vim.tbl_filter(function(name) "
            "return name:find('^pillion') end, vim.tbl_keys(package.loaded)), ' '), "
            "tostring(vim.g.loaded_pillion), vim.fn.exists(':Pillion'))",
            "+qall!",
        ],
        env=scripted.environment | {"VIMRUNTIME": str(INSTALL / "share/nvim/runtime")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert loaded.stdout + loaded.stderr == "true2"


def test_the_startup_command_prints_a_ratio(scripted: ScriptedDaemon) -> None:
    script = Path(__file__).with_name("neovim_startup.py")
    done = subprocess.run(
        [sys.executable, script, "--runs", "3"],
        env=scripted.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "over an empty plugin" in done.stdout
