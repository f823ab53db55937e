"""Which files of a project are left alone: what its ignore files name, and what looks secret.

Patterns are git's, matched by `pathspec`. A later source wins, as in git and ripgrep: the user's
own `core.excludesFile`, the repository's `info/exclude`, every `.gitignore` from the top down, then
every `.ignore`, then every `.pillionignore`. Secrets stay out whatever any of them says.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".ignore", ".pillionignore")
"""Least to most important; below them are `info/exclude` and the user's own file."""

_NEVER = frozenset((".git", ".hg", ".svn", ".jj", "node_modules", "__pycache__"))
"""Directories that hold nothing a user wrote, also where no ignore file says so."""

MARKERS = frozenset(("pyvenv.cfg", "CACHEDIR.TAG"))
"""A file of this name says that its directory is made by a program."""

_KEY_FILE = re.compile(r"id_[^./]*(?:\.pub)?")
# How pathspec begins the expression of a pattern that holds at any depth, and one for no path.
_ANYWHERE, _NOTHING = "^(?:.+/)?", r"(?!)"


@functools.lru_cache(1024)
def is_secret(path: str) -> bool:
    """Whether a path (``/`` between its parts, relative or absolute) looks like credentials."""
    *folders, name = path.strip("/").split("/")
    return secret_name(name) or any(secret_name(f"{folder}/") for folder in folders)


def secret_name(name: str) -> bool:
    """The same for one part of a path; a folder's ends in ``/``."""
    name = name.lower()
    return _KEY_FILE.fullmatch(name) is not None or _SECRETS.verdict(name) is True


class Patterns:
    """The lines of one ignore file, for the paths below the folder that it stands in."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._spec = _spec(lines)
        self._names, self._paths = _quick(self._spec)

    def verdict(self, path: str) -> bool | None:
        """True: ignored; False: explicitly not; None: nothing is said. A directory ends in /."""
        name = path[path.rfind("/", 0, -1) + 1 :]
        if self._names.match(name) is None and self._paths.match(path) is None:
            return None
        return self._spec.check_file(path).include


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines := list(lines))
    except ValueError:
        # git passes over a pattern that it does not understand, and keeps the others.
        kept = []
        for line in lines:
            with contextlib.suppress(ValueError):
                GitIgnoreSpec.from_lines([line])
                kept.append(line)
        return GitIgnoreSpec.from_lines(kept)


def _quick(spec: GitIgnoreSpec) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What matches wherever any pattern does, for names alone and for whole paths: most files match
    none, and to ask all at once is ten times as quick. Where the library's patterns are not what
    is expected here, everything matches, and each is asked."""
    names, paths = [], []
    for pattern in spec.patterns:
        if pattern.include is None or pattern.regex is None:
            continue
        source = re.sub(r"\?P<\w+>", "?:", str(pattern.regex.pattern))
        if source.startswith(_ANYWHERE) and "/" not in str(pattern.pattern).strip().rstrip("/"):
            names.append(source.removeprefix(_ANYWHERE))
        else:
            paths.append(source)
    try:
        return re.compile("|".join(names) or _NOTHING), re.compile("|".join(paths) or _NOTHING)
    except re.error:
        return re.compile(""), re.compile("")


_SECRETS = Patterns(
    [
        ".env",
        ".env.*",
        "*.env",
        "!.env.example",
        "!.env.sample",
        "!.env.template",
        "!.env.dist",
        ".envrc",
        "*.pem",
        "*.key",
        "*.p8",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "*.kdbx",
        "*.ppk",
        "*.asc",
        "*.gpg",
        "*.age",
        ".netrc",
        "_netrc",
        ".npmrc",
        ".pypirc",
        ".pgpass",
        ".my.cnf",
        ".htpasswd",
        ".dockercfg",
        ".git-credentials",
        "credentials",
        "credentials.*",
        ".credentials*",
        "*credentials.json",
        "client_secret*.json",
        "service-account*.json",
        "service_account*.json",
        "secrets.*",
        "secret.*",
        "!secrets.py",
        "!secret.py",
        "!secrets.go",
        "!secret.go",
        "!secrets.rs",
        "!secret.rs",
        "!secrets.ts",
        "!secret.ts",
        "!secrets.js",
        "!secret.js",
        "*.tfstate",
        "*.tfstate.*",
        "*.tfvars",
        "master.key",
        ".ssh/",
        ".gnupg/",
        ".aws/",
        ".azure/",
        ".kube/",
        ".docker/",
        ".password-store/",
    ]
)


@dataclass(frozen=True)
class _Source:
    """rank: which kind of file, more important ones higher. base: the folder it stands in, relative
    to the root (``""`` or ``a/b/``); `above` is what leads from a folder further up to the root."""

    rank: int
    base: str
    above: str
    patterns: Patterns


@dataclass(frozen=True)
class Rules:
    """What holds in one directory. Paths are relative to the root."""

    sources: tuple[_Source, ...] = ()

    def extended(self, kind: str, text: str, base: str = "", above: str = "") -> Rules:
        """These rules and those of one more file. kind: its name, one of `IGNORE_FILES`, or ``""``
        for a file that is less important than any. base: its folder (``""`` or ``a/b``).
        above: path from its folder down to the root, where it stands further up."""
        rank = IGNORE_FILES.index(kind) + 1 if kind else 0
        source = _Source(
            rank,
            f"{base}/" if base else "",
            f"{above}/" if above else "",
            Patterns(text.removeprefix("\ufeff").splitlines()),
        )
        # Deeper files come later, so a stable sort keeps them ahead of those of the same kind.
        ordered = sorted((source, *self.sources), key=lambda one: -one.rank)
        return Rules(tuple(ordered))

    def ignores(self, path: str, *, directory: bool = False) -> bool:
        """Whether `path` (relative to the root) is ignored; its parent is known not to be."""
        name = path.rpartition("/")[2]
        if directory:
            if name in _NEVER:
                return True
            path += "/"
        for source in self.sources:
            verdict = source.patterns.verdict(source.above + path[len(source.base) :])
            if verdict is not None:
                return verdict
        return False


def outer_rules(root: Path) -> Rules:
    """The rules that come from outside a root: git's own files, and the ignore files of the
    repository's folders above it. Runs git where there is one; works without."""
    rules = Rules()
    for path in _exclude_files(root):
        rules = rules.extended("", _text(path))
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    between = [folder for folder in reversed(root.parents) if folder.is_relative_to(top)]
    for folder in between:
        for kind in IGNORE_FILES:
            if text := _text(folder / kind):
                above = root.relative_to(folder).as_posix()
                rules = rules.extended(kind, text, above=above)
    return rules


def _exclude_files(root: Path) -> Iterable[Path]:
    """Least important first."""
    configured = _git(root, "config", "--get", "--type=path", "core.excludesFile")
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    yield Path(configured or Path(base, "git", "ignore")).expanduser()
    inside = _git(root, "rev-parse", "--git-path", "info/exclude")
    yield root / (inside or ".git/info/exclude")


def _git(root: Path, *arguments: str) -> str:
    """What git prints; nothing where there is no git, or where it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(done.stdout.rstrip(b"\n")) if done.returncode == 0 else ""


def _text(path: Path) -> str:
    """What a file of patterns says; a repository may name anything as one, a pipe for example."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(1 << 20).decode(errors="replace")
    except OSError:
        pass
    return ""
