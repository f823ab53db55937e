"""Run the user's own check on a result, in a copy of the project.

The copy has the files that are not ignored. The check runs on all changes together; where it fails,
on each alone, and then once more on those that pass.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine import RequestError
from sidecar.edits.journal import Change
from sidecar.edits.writable_root import checked
from sidecar.workspace.ignore import outer_rules
from sidecar.workspace.listing import Listing
from sidecar.workspace.root import Root

_LAST_WORDS = 160


class Scratch:
    """A copy of the project at `root`, until the block ends. seconds: that a check may take."""

    def __init__(self, root: Path, command: str, *, seconds: float = 600.0) -> None:
        self._root = root
        self._command = command
        self._seconds = seconds

    def __enter__(self) -> Scratch:
        self._held = tempfile.TemporaryDirectory(
            prefix="pillion-check-", ignore_cleanup_errors=True
        )
        self._folder = Path(self._held.name)
        place = Root(self._root)
        listing = Listing(place, outer_rules(place.path))
        listing.scan()
        for path in listing.names():
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # What is gone meanwhile, or not ours to read, a check may well do without.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                shutil.copy2(self._root / path, target, follow_symlinks=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.cleanup()

    def refused(self, changes: Sequence[Change]) -> dict[str, str]:
        """Why changes cannot be taken, by path; the others pass the check together. Raises
        RequestError where the check fails on the project as it is."""
        if said := self._run(()):
            raise RequestError(f"--check fails before anything is changed: {said}", field="check")
        if not changes or not self._run(changes):
            return {}
        alone = {change.path: self._run([change]) for change in changes}
        wrong = {path: f"fails the check: {said}" for path, said in alone.items() if said}
        rest = [change for change in changes if change.path not in wrong]
        if len(rest) == 1 or not rest:
            return wrong
        if said := self._run(rest):
            wrong |= {change.path: f"fails the check, with others: {said}" for change in rest}
        return wrong

    def _run(self, changes: Sequence[Change]) -> str:
        """What a failed check said last, or its exit code; empty where it passes. The copy is as
        before, as far as the changes go."""
        for change in changes:
            self._write(change.path, change.after)
        try:
            return self._outcome()
        finally:
            for change in changes:
                self._write(change.path, change.before)

    def _write(self, path: str, data: bytes) -> None:
        """In the copy and nowhere else, whatever links a check has made there."""
        target = self._folder.joinpath(*checked(path))
        if not target.parent.resolve().is_relative_to(self._folder.resolve()):
            raise RequestError(
                f"--check put a link to elsewhere in the place of {path}'s folder", field="check"
            )
        mode = target.stat().st_mode & 0o777 if target.is_file() else 0o644
        target.parent.mkdir(parents=True, exist_ok=True)
        # A file of its own, also where a check has left a link.
        target.unlink(missing_ok=True)
        target.write_bytes(data)
        target.chmod(mode)

    def _outcome(self) -> str:
        # A session of its own, so that nothing that the check starts outlives it.
        process = subprocess.Popen(
            self._command,
            shell=True,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            return f"it takes longer than {self._seconds:g} seconds"
        finally:
            _end(process)
        if process.returncode == 0:
            return ""
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:_LAST_WORDS] if lines else f"exit code {process.returncode}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
