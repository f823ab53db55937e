"""Which files of the project a file's imports mean. Pure, but for the listing it asks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from sidecar.workspace.languages import Language
from sidecar.workspace.listing import Directory


class Files(Protocol):
    """As `sidecar.workspace.listing.Listing` has them."""

    def __contains__(self, path: str) -> bool: ...

    def directory(self, path: str) -> Directory | None: ...

    def ending(self, tail: str) -> list[str]: ...


class Import(NamedTuple):
    """path: of a module, with ``/`` between its parts and no suffix, or of a file. names: what is
    taken from it; none means all. up: how many folders above the file's own the path begins (1 is
    its own folder); 0 where it begins at a root of the language."""

    path: str
    names: frozenset[str] = frozenset()
    up: int = 0


def imports_of(statements: Iterable[str], language: Language) -> list[Import]:
    """What the statements of an `outline.Outline` name, each module once, in order."""
    found: dict[tuple[str, int], frozenset[str] | None] = {}
    for statement in statements:
        for path, names, up in _READERS[language.name](statement):
            before = found.get((path, up), frozenset())
            # Whoever takes all takes each name, too.
            found[path, up] = names | before if names and before is not None else None
    return [Import(path, names or frozenset(), up) for (path, up), names in found.items()]


def resolve(wanted: Import, path: str, language: Language, files: Files) -> list[str]:
    """The files that an import in `path` means, most likely one; none if it is not of the
    project."""
    folder = posixpath.dirname(path)
    if language.name == "go":
        return _package(wanted.path, files)
    if wanted.up:
        for _ in range(wanted.up - 1):
            if not folder:
                return []
            folder = posixpath.dirname(folder)
        return _below(folder, wanted, language, files)
    for base in _bases(folder, language):
        if found := _below(base, wanted, language, files):
            return found
    if language.name in ("c", "cpp", "java") and "/" in wanted.path:
        suffixes = ("",) if posixpath.splitext(wanted.path)[1] else language.suffixes
        return [one for suffix in suffixes for one in files.ending(wanted.path + suffix)[:1]]
    return []


def _package(path: str, files: Files) -> list[str]:
    """Go names a package by its folder, behind the name of its module."""
    parts = path.split("/")
    if len(parts) == 1:
        return []
    for start in range(len(parts)):
        folder = "/".join(parts[start:])
        if (found := files.directory(folder)) is not None:
            names = sorted(name for name in found.files if name.endswith(".go"))
            return [f"{folder}/{name}" for name in names if not name.endswith("_test.go")]
    return []


def _bases(folder: str, language: Language) -> Iterator[str]:
    """Folders where an absolute path may begin: the nearest first."""
    while True:
        yield folder
        for name in language.folders:
            yield posixpath.join(folder, name)
        if not folder:
            return
        folder = posixpath.dirname(folder)


def _below(base: str, wanted: Import, language: Language, files: Files) -> list[str]:
    stem = posixpath.normpath(posixpath.join(base, wanted.path)).removeprefix("./")
    if stem.startswith(".."):
        return []
    stem = "" if stem == "." else stem
    if stem and (module := _module(stem, language, files)):
        package = posixpath.basename(module) in language.index
        # `from package import module` means the module.
        inner = [_module(f"{stem}/{name}", language, files) for name in sorted(wanted.names)]
        return [one for one in inner if one] or [module] if package else [module]
    inner = [_module(posixpath.join(stem, name), language, files) for name in sorted(wanted.names)]
    return [one for one in inner if one]


def _module(stem: str, language: Language, files: Files) -> str | None:
    if stem in files:
        return stem
    candidates = [stem + suffix for suffix in language.suffixes]
    candidates += [posixpath.join(stem, name) for name in language.index]
    # `import "./x.js"` is written for x.ts, too.
    bare, suffix = posixpath.splitext(stem)
    if suffix in (".js", ".jsx", ".mjs"):
        candidates += [bare + other for other in language.suffixes]
    return next((one for one in candidates if one in files), None)


Reader = Callable[[str], Iterator[Import]]

_WORD = re.compile(r"[A-Za-z_]\w*")


def _python(text: str) -> Iterator[Import]:
    text = re.sub(r"#.*|\\\n", " ", text)
    if found := re.match(r"\s*from\s+(\.*)\s*([\w.]*)\s+import\s+(.*)", text, re.DOTALL):
        dots, module, taken = found.groups()
        parts = (part.split()[:1] for part in taken.strip("() \n").split(","))
        names = frozenset(name for part in parts for name in part if _WORD.fullmatch(name))
        if module or dots:
            yield Import(module.replace(".", "/"), names, len(dots))
    elif found := re.match(r"\s*import\s+(.*)", text, re.DOTALL):
        for part in found[1].split(","):
            if (words := part.split()) and re.fullmatch(r"[\w.]+", words[0]):
                yield Import(words[0].replace(".", "/"))


def _script(text: str) -> Iterator[Import]:
    for found in re.finditer(
        r"""(?:\bfrom\s*|\bimport\s*\(?\s*|\brequire\s*\(\s*)(["'])(\.[^"'\n]*)\1""", text
    ):
        clause = text[: found.start()]
        braces = re.search(r"\{([^}]*)\}", clause)
        names = frozenset(
            part.split()[-1 if part.split()[0] == "type" and len(part.split()) == 2 else 0]
            for part in (braces[1].split(",") if braces else ())
            if part.split()
        )
        # A default import takes what has no name of its own.
        plain = re.match(r"\s*import\s+(?:type\s+)?[\w$*]", clause)
        yield Import(found[2], frozenset() if plain else names, 1)


def _go(text: str) -> Iterator[Import]:
    for path in re.findall(r'"([^"\n]+)"', text):
        yield Import(path)


def _rust(text: str) -> Iterator[Import]:
    text = re.sub(r"\s+", " ", text)
    if found := re.match(r"(?:pub(?:\([\w: ]+\))? )?mod (\w+) ?;", text):
        yield Import(found[1], up=1)
    elif found := re.match(r"(?:pub(?:\([\w: ]+\))? )?use (.*?);?$", text):
        path, _, group = found[1].partition("{")
        parts = [part for part in path.strip().split("::") if part]
        if group:
            names = frozenset(_WORD.findall(group.replace(" as ", " ")))
        else:
            names = frozenset(parts[-1].split()[:1]) if parts else frozenset()
            parts = parts[:-1]
        up = 0
        while parts and parts[0] in ("crate", "self", "super"):
            up += parts[0] in ("super", "self")
            parts = parts[1:]
        yield Import("/".join(parts), names, up)


def _include(text: str) -> Iterator[Import]:
    if found := re.match(r'\s*#\s*include\s*[<"]([^>"\n]+)[>"]', text):
        yield Import(found[1])


def _java(text: str) -> Iterator[Import]:
    if found := re.match(r"\s*import\s+(static\s+)?([\w.]+)(\.\*)?\s*;", text):
        static, path, star = found.groups()
        parts = path.split(".")
        yield Import("/".join(parts[:-1] if static and not star else parts))


def _lua(text: str) -> Iterator[Import]:
    for path in re.findall(r"""\brequire\s*\(?\s*["']([\w./-]+)["']""", text):
        yield Import(path.replace(".", "/"))


def _ruby(text: str) -> Iterator[Import]:
    if found := re.match(r"""\s*require(_relative)?\s*\(?\s*["']([\w./-]+)["']""", text):
        yield Import(found[2], up=1 if found[1] else 0)


_READERS: dict[str, Reader] = {
    "python": _python,
    "javascript": _script,
    "typescript": _script,
    "go": _go,
    "rust": _rust,
    "c": _include,
    "cpp": _include,
    "java": _java,
    "lua": _lua,
    "ruby": _ruby,
}
