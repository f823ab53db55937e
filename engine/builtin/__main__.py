"""``python -m engine.builtin``: check the shipped model against SHA256SUMS and print its sizes."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
MANIFEST = FOLDER / "SHA256SUMS"


def check(folder: Path, manifest: str) -> tuple[list[tuple[str, int]], list[str]]:
    """Compare `folder` with lines of ``sha256  name``, as sha256sum writes them.

    Returns (name, bytes) of each listed file that is whole, and what is wrong with the others.
    """
    sizes, faults = [], []
    for line in manifest.splitlines():
        expected, name = line.split(maxsplit=1)
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            faults.append(f"{name}: {error.strerror}")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found == expected:
            sizes.append((name, len(content)))
        else:
            faults.append(f"{name}: SHA-256 is {found}, expected {expected}")
    return sizes, faults


def main() -> int:
    """Print the result; 0 if every file is whole, else 1."""
    sizes, faults = check(FOLDER, MANIFEST.read_text("utf-8"))
    for name, size in sizes:
        print(f"ok  {size:>12,} bytes  {name}")
    for fault in faults:
        print(f"BAD {fault}", file=sys.stderr)
    print(f"{len(sizes)} files, {sum(size for _, size in sizes):,} bytes, {len(faults)} bad")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
