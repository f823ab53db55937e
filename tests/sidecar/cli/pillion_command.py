"""The `pillion` command inside the test's process: no start-up to wait for."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from sidecar.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Pillion:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run one verb to its end, as the console script does."""
        self._monkeypatch.setattr(sys, "argv", ["pillion", *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)
