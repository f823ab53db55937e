"""Permissively licensed Python: the standard library and pinned PyPI wheels, some of it held out.

Nothing is executed and nothing is installed: wheels are read as zip files.
"""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path


def words(text: str) -> tuple[str, ...]:
    """What white space separates; shorter than a list with quotes."""
    return tuple(text.split())


# name==version of each wheel trained on; LICENCES.md beside this file lists their licences.
PACKAGES = words("""
aiohttp==3.12.15 attrs==25.3.0 black==25.9.0 boto3==1.40.45 botocore==1.40.45 celery==5.5.3
django==5.2.7 docker==7.1.0 fastapi==0.118.0 httpx==0.28.1 ipython==9.6.0 jedi==0.19.2
jinja2==3.1.6 jsonschema==4.25.1 mkdocs==1.6.1 mypy==1.18.2 networkx==3.5 packaging==25.0
parso==0.8.5 pip==25.2 poetry-core==2.2.1 prompt_toolkit==3.0.52 pydantic==2.11.9
pygments==2.19.2 pyparsing==3.2.5 pytest==8.4.2 rich==14.1.0 scrapy==2.13.3 setuptools==80.9.0
sqlalchemy==2.0.43 starlette==0.48.0 sympy==1.14.0 textual==6.2.1 tornado==6.5.2 trio==0.31.0
typer==0.19.2 urllib3==2.5.0 werkzeug==3.1.3
""")
# Whole packages that are never trained on.
HELD_OUT = ("requests==2.32.5", "click==8.3.0", "flask==3.1.2")
HELD_OUT_STDLIB = 25  # and one in so many files of the standard library
MOST_CHARACTERS = 1_200_000  # of one package, so that none dominates
SKIPPED = frozenset(
    words("""
site-packages test tests testing idlelib lib2to3 encodings ensurepip turtledemo pydoc_data
msilib lexers locale migrations _vendor vendor vendored __pycache__
""")
)
SHINGLE_LINES = 6
MOST_SHARED = 0.5


@dataclass(frozen=True)
class Source:
    """One Python file: where it is from, e.g. "trio/_core/_run.py", and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    train: list[Source]
    held_out_packages: list[Source]
    held_out_stdlib: list[Source]


def worth_reading(text: str) -> bool:
    """Not tiny, not huge, and not mostly data."""
    if not 200 < len(text) < 200_000 or max(map(len, text.split("\n"))) > 1000:
        return False
    letters = sum(map(str.isalpha, text)) / len(text)
    digits = sum(map(str.isdigit, text)) / len(text)
    return letters > 0.35 and digits < 0.12


def stdlib_is_held_out(name: str) -> bool:
    return int(hashlib.sha1(name.encode()).hexdigest()[:8], 16) % HELD_OUT_STDLIB == 0


class NearCopies:
    """Remembers runs of lines, to drop files that mostly repeat ones already taken."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def add(self, text: str) -> bool:
        """Take `text` unless over half of its runs of lines were seen; whether it was taken."""
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        runs = {
            int.from_bytes(hashlib.blake2b("\n".join(run).encode(), digest_size=8).digest())
            for run in zip(*(lines[i:] for i in range(SHINGLE_LINES)), strict=False)
        }
        if len(runs & self._seen) > MOST_SHARED * len(runs):
            return False
        self._seen |= runs
        return True


def stdlib() -> Iterator[Source]:
    """The standard library of the running Python, in the order of its paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not SKIPPED & set(name.parts) and not any("config-" in part for part in name.parts):
            try:
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if worth_reading(text):
                yield Source(name.as_posix(), text)


def wheel(path: Path) -> Iterator[Source]:
    """The Python files of a wheel, in the order of their names."""
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py") and not SKIPPED & set(name.split("/")):
                try:
                    text = archive.read(name).decode()
                except UnicodeDecodeError:
                    continue
                if worth_reading(text):
                    yield Source(name, text)


def wheel_of(folder: Path, requirement: str) -> Path:
    """The wheel of ``name==version`` in `folder`. Raises FileNotFoundError naming it."""
    name, version = requirement.split("==")
    pattern = re.compile(rf"{re.sub(r'[-_.]+', '[-_.]+', name)}-{re.escape(version)}-", re.I)
    for path in sorted(folder.glob("*.whl")):
        if pattern.match(path.name):
            return path
    raise FileNotFoundError(f"{requirement}: no wheel in {folder}")


def download(folder: Path) -> None:
    """Fetch the wheels that are missing from `folder` with pip."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for requirement in (*PACKAGES, *HELD_OUT):
        try:
            wheel_of(folder, requirement)
        except FileNotFoundError:
            missing.append(requirement)
    if missing:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--only-binary", ":all:", "-d", str(folder), *missing], check=True)


def collect(
    folder: Path,
    packages: Sequence[str] = PACKAGES,
    held_out: Sequence[str] = HELD_OUT,
    standard: Iterable[Source] | None = None,
) -> Corpus:
    """Read everything, in one order on every machine with the same Python and wheels.

    The held-out files are taken first, so that near copies of them are not trained on either.
    """
    copies = NearCopies()

    def fresh(sources: Iterable[Source]) -> list[Source]:
        return [source for source in sources if copies.add(source.text)]

    library = list(stdlib() if standard is None else standard)
    held_packages = fresh(s for name in held_out for s in wheel(wheel_of(folder, name)))
    held_library = fresh(s for s in library if stdlib_is_held_out(s.name))
    train = fresh(s for s in library if not stdlib_is_held_out(s.name))
    for requirement in packages:
        sources = list(wheel(wheel_of(folder, requirement)))
        random.Random(requirement).shuffle(sources)
        room = MOST_CHARACTERS
        for source in fresh(sources):
            if room > 0:
                room -= len(source.text)
                train.append(source)
    random.Random(0).shuffle(train)
    return Corpus(train, held_packages, held_library)


def licence(path: Path) -> str:
    """What a wheel says about its licence: the expression, else the classifier, else the text."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(archive.read(name).decode())
    classifiers = [
        value.split(" :: ")[-1]
        for value in fields.get_all("Classifier", [])
        if value.startswith("License :: ")
    ]
    named = fields["License-Expression"] or ", ".join(classifiers) or fields["License"] or "?"
    return named.splitlines()[0]
