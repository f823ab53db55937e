"""`editors/emacs/pillion.el` in a real Emacs: keys, overlays, edits."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from neovim_daemon import ScriptedDaemon

pytestmark = pytest.mark.clients

EMACS = shutil.which("emacs")
PACKAGE = Path(__file__).parents[2] / "editors/emacs"
HEAD = "class Stack:\n    def push(self, item):\n"
APPEND = "        self.items.append(item)\n"
DRIVER = """
(require 'pillion)
(defun until (condition)
  (with-timeout (60 (error "waited in vain: %S" (buffer-string)))
    (while (not (funcall condition)) (accept-process-output nil 0.02))))
(defun shown () (and pillion--ghost (overlay-get pillion--ghost 'pillion-text)))
(defun press (keys) (execute-kbd-macro (kbd keys)))
(find-file (getenv "TEST_FILE"))
(pillion-mode 1)
(goto-char (point-max))
"""


def run(daemon: ScriptedDaemon, project: Path, text: str, code: str) -> list[object]:
    """What `code` says with `(say value)`, in an Emacs on a file with `text`."""
    file = project / "stack.py"
    file.write_text(text)
    said = project / "said.json"
    say = "(defvar all nil)\n(defun say (it) (setq all (append all (list it))))\n"
    end = f'\n(with-temp-file "{said}" (insert (json-encode (vconcat all))))'
    script = project / "driver.el"
    script.write_text(DRIVER + say + code + end)
    done = subprocess.run(
        [EMACS, "-Q", "--batch", "-L", PACKAGE, "-l", script],
        env=daemon.environment | {"TEST_FILE": str(file), "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=project,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(said.read_text()))


def test_a_suggestion_is_shown_typed_along_and_accepted(
    scripted: ScriptedDaemon, project: Path
) -> None:
    scripted.say(APPEND)
    said = run(
        scripted,
        project,
        HEAD,
        """
        (insert "        self.it")
        (pillion-complete)
        (until (lambda () (shown)))
        (say (shown))
        (say (substring-no-properties (overlay-get pillion--ghost 'after-string)))
        (press "e")
        (say (shown))
        (press "M-<right>")
        (say (shown))
        (press "TAB")
        (say (shown))
        (say (buffer-string))
        """,
    )
    assert said[:4] == ["ems.append(item)", "ems.append(item)", "ms.append(item)", ".append(item)"]
    assert said[4:] == [None, HEAD + APPEND.rstrip("\n")]


def test_an_answer_for_an_older_place_is_not_shown(scripted: ScriptedDaemon, project: Path) -> None:
    scripted.say(APPEND)
    said = run(
        scripted,
        project,
        HEAD,
        """
        (insert "        é = '😀'; self.it")
        (pillion-complete)
        (goto-char (point-min))
        (jsonrpc-request (pillion--connect) :pillion/status nil)
        (say (shown))
        """,
    )
    assert said == [None]


def test_a_region_is_edited_after_a_yes(scripted: ScriptedDaemon, project: Path) -> None:
    scripted.say(edit=(("item", "value"),))
    said = run(
        scripted,
        project,
        "# item 😀\n" + HEAD,
        """
        (defvar answer nil)
        (defun y-or-n-p (_) (say (with-current-buffer "*pillion edit*" (buffer-string))) answer)
        (pillion-edit-region 10 (point-max) "Rename item.")
        (say (buffer-string))
        (setq answer t)
        (pillion-edit-region 10 (point-max) "Rename item.")
        (say (buffer-string))
        """,
    )
    assert "+    def push(self, value):" in str(said[0])
    assert said[1] == "# item 😀\n" + HEAD
    assert said[3] == "# item 😀\n" + HEAD.replace("item", "value")
