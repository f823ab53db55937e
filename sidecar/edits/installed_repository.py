"""A repository made of the Python files of installed packages, to try edits on."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from engine import PillionError

MODES = (0o644, 0o755, 0o600)
_MARK = b"\xef\xbb\xbf"


def installed_files(most_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Python files of installed packages: path, bytes."""
    folder = Path(sysconfig.get_path("purelib"))
    for path in sorted(folder.rglob("*.py")):
        if path.is_file() and 200 < path.stat().st_size <= most_bytes:
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def make_repository(folder: Path, files: int, word: bytes, most_bytes: int = 2500) -> list[str]:
    """`files` installed files that have `word`: some executable, some with CRLF or a byte order
    mark, some without a final newline, with links beside. Their paths. Raises PillionError where
    there are fewer."""
    made = list[str]()
    for path, data in installed_files(most_bytes):
        if not re.search(rb"\b" + word + rb"\b", data) or b"\r" in data or data[:1] == b"\xef":
            continue
        try:
            compile(data, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        name = f"pkg/{path.replace('/', '_')}"
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_varied(data, len(made)))
        target.chmod(MODES[len(made) % len(MODES)])
        made.append(name)
        if len(made) == files:
            break
    else:
        raise PillionError(f"{len(made)} of {files} files are installed that have {word.decode()}")
    (folder / "pkg" / "link.py").symlink_to("../elsewhere.py")
    (folder / "pkg" / "first.py").symlink_to(Path(made[0]).name)
    (folder / "loop").symlink_to(".")
    return made


def _varied(data: bytes, number: int) -> bytes:
    if number % 7 == 1:
        return data.replace(b"\n", b"\r\n")
    if number % 7 == 2:
        return data.rstrip(b"\n")
    return _MARK + data if number % 7 == 3 else data
