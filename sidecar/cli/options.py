"""Options that mean the same for every verb that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigFile = Annotated[Path | None, typer.Option(help="Settings file (TOML).")]
Local = Annotated[bool, typer.Option("--local", help="Load the model here; no daemon needed.")]
