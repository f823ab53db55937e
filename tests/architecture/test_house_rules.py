"""The rules of CONTRIBUTING.md that a machine can check."""

from __future__ import annotations

import ast
import re
import tokenize
from io import StringIO
from pathlib import Path

import pytest
from source_tree import PACKAGES, ROOT, files, parsed, text, violations

SHIPPED = files(*PACKAGES)
PYTHON = files(*PACKAGES, "tests")
DOCUMENTS = [
    Path("README.md"),
    Path("ARCHITECTURE.md"),
    Path("CONTRIBUTING.md"),
    Path("CHANGELOG.md"),
    Path("Makefile"),
    Path("pyproject.toml"),
    Path(".ci/run"),
]


def imported_names(tree: ast.Module) -> set[str]:
    """Names that an import binds anywhere in the module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def root_name(node: ast.expr) -> str | None:
    """`a` of ``a.b.c``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def patches(tree: ast.Module) -> list[str]:
    """Places that change an imported module or class, or the class of an object."""
    foreign = imported_names(tree)
    found = []

    def changed(target: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                changed(element)
        elif isinstance(target, ast.Attribute):
            of_type = isinstance(target.value, ast.Call) and root_name(target.value.func) == "type"
            if root_name(target) in foreign or of_type or target.attr == "__class__":
                found.append(f"{target.lineno}: {ast.unparse(target)}")

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            for target in node.targets:
                changed(target)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            changed(node.target)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"setattr", "delattr"}
            and node.args
            and root_name(node.args[0]) in foreign
        ):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def unexplained(source: str) -> list[str]:
    """`type: ignore` and `noqa` comments without a code or without a reason: words behind them
    on the line, or a comment of its own line above."""
    wrong: list[str] = []
    if "noqa" not in source and "type:" not in source:
        return wrong
    lines = source.splitlines()
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        found = re.search(
            r"#\s*(type:\s*ignore(\[[\w, -]+\])?|noqa(:\s*[A-Z0-9, ]+)?)", token.string
        )
        if found is None:
            continue
        coded = found[2] or found[3]
        behind = token.string[found.end() :].strip(" #:-")
        # One reason may stand above a run of such lines.
        above = token.start[0] - 2
        while above >= 0 and lines[above].endswith(token.string):
            above -= 1
        explained = re.search(r"\w", behind) or lines[above].lstrip().startswith("#")
        if not coded or not explained:
            wrong.append(f"{token.start[0]}: {token.string}")
    return wrong


def silent_skips(tree: ast.Module) -> list[str]:
    """Skips and expected failures that give no reason."""
    wrong = []
    for node in ast.walk(tree):
        name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if name not in {"pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}:
            continue
        calls = [
            call for call in ast.walk(tree) if isinstance(call, ast.Call) and call.func is node
        ]
        reasons = [word.value for call in calls for word in call.keywords if word.arg == "reason"]
        if not any(isinstance(reason, ast.Constant) and reason.value for reason in reasons):
            wrong.append(f"{node.lineno}: {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pytest.skip", "pytest.xfail"}:
            given = [*node.args, *(word.value for word in node.keywords if word.arg == "reason")]
            if not given or (isinstance(given[0], ast.Constant) and not given[0].value):
                wrong.append(f"{node.lineno}: {ast.unparse(node)}")
    return wrong


def machine_paths(source: str) -> list[str]:
    """Absolute paths that exist on somebody's machine only."""
    return re.findall(r"(?<![\w.$})])/(?:work|root|tmp|home|Users)/[^\s\"'`)]*", source)


def undocumented(tree: ast.Module, known: set[str]) -> list[str]:
    """Public functions and classes without a docstring.

    A function needs none where it is at most three lines, a method besides where it implements one
    of that name that a protocol or base class documents (`known`), a class where it has only
    fields, and a program's `main` none beside the module's.
    """
    wrong = []

    def visit(body: list[ast.stmt], in_class: bool) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                fields_only = all(isinstance(line, ast.AnnAssign) for line in node.body)
                if ast.get_docstring(node) is None and not fields_only:
                    wrong.append(f"{node.lineno}: class {node.name}")
                visit(node.body, True)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if (
                    node.name.startswith("_")
                    or node.name == "main"
                    or ast.get_docstring(node) is not None
                ):
                    continue
                assert node.end_lineno is not None
                lines = node.end_lineno - node.body[0].lineno + 1
                if lines > 3 and not (in_class and node.name in known):
                    wrong.append(f"{node.lineno}: {node.name}")

    visit(tree.body, False)
    return wrong


def documented_methods() -> set[str]:
    """Names of methods that some class of ours documents."""
    return {
        method.name
        for path in SHIPPED
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(method)
    }


def dangling(path: Path) -> list[str]:
    """Documents named in the code that a reader of this repository does not have."""
    named = re.findall(r"\bDESIGN\b|\b[\w-]+\.md\b", text(path))
    ours = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *files(*PACKAGES, suffixes=(".md",)))
    here = {found.name for found in ours}
    return [name for name in named if name not in here]


def left_for_later(path: Path) -> list[str]:
    """Promises in the code instead of code."""
    names = (node.id for node in ast.walk(parsed(path)) if isinstance(node, ast.Name))
    found = [name for name in names if name == "NotImplementedError"]
    if re.search(r"\b(TODO|FIXME|XXX)\b", text(path)):
        tokens = tokenize.generate_tokens(StringIO(text(path)).readline)
        comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
        found += [line for line in comments if re.search(r"\b(TODO|FIXME|XXX)\b", line)]
    return found


def test_no_monkey_patching() -> None:
    assert violations(SHIPPED, lambda path: patches(parsed(path))) == {}


def test_no_mocks() -> None:
    def rule(path: Path) -> list[str]:
        return sorted(imported_names(parsed(path)) & {"mock", "unittest"})

    assert violations(files("tests"), rule) == {}


def test_exceptions_to_a_rule_give_their_reason() -> None:
    assert violations(PYTHON, lambda path: unexplained(text(path))) == {}
    assert violations(PYTHON, lambda path: silent_skips(parsed(path))) == {}


def test_no_paths_of_one_machine() -> None:
    sources = files(*PACKAGES, "editors", suffixes=(".py", ".lua", ".ts", ".md", ".json"))
    assert violations([*sources, *DOCUMENTS], lambda path: machine_paths(text(path))) == {}


def test_public_names_have_docstrings() -> None:
    known = documented_methods()
    assert violations(SHIPPED, lambda path: undocumented(parsed(path), known)) == {}
    bare = [path for path in SHIPPED if text(path) and ast.get_docstring(parsed(path)) is None]
    assert bare == []


def test_documents_that_are_named_are_here() -> None:
    assert violations(SHIPPED, dangling) == {}


def test_nothing_is_left_for_later() -> None:
    assert violations(PYTHON, left_for_later) == {}


def test_every_source_file_has_unix_line_ends() -> None:
    assert [path for path in PYTHON if b"\r" in (ROOT / path).read_bytes()] == []


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads = None",
        "from a import Model\nModel.forward = lambda self: 1",
        "import a.b\na.b.C.call = 1",
        "from a import C\nsetattr(C, 'x', 1)",
        "from a import C\n(C.x, y) = 1, 2",
        "from a import C\ndel C.x",
        "def f(x):\n    type(x).call = 1",
        "def f(x, c):\n    x.__class__ = c",
    ],
)
def test_the_patching_rule_bites(source: str) -> None:
    assert patches(ast.parse(source))


def test_the_patching_rule_lets_objects_change() -> None:
    source = "from a import b\ndef f(x):\n    x.y = b.z\n    b.table['k'] = 1"
    assert patches(ast.parse(source)) == []


def test_the_reason_rules_bite() -> None:
    bare, coded = "# type:" + " ignore", "# no" + "qa: E501"
    assert unexplained(f"x = 1  {bare}\n")
    assert unexplained(f"x = 1  {coded}\n")
    assert unexplained(f"x = 1  {coded}  # the URL cannot be broken\n") == []
    assert unexplained(f"# Why.\nx = 1  {coded}\ny = 1  {coded}\n") == []
    assert silent_skips(ast.parse("@pytest.mark.skip\ndef f(): pass"))
    assert silent_skips(ast.parse("@pytest.mark.skipif(True)\ndef f(): pass"))
    assert silent_skips(ast.parse("def f(): pytest.skip()"))
    assert silent_skips(ast.parse("@pytest.mark.skipif(x, reason='no Mac')\ndef f(): pass")) == []


def test_the_path_and_docstring_rules_bite() -> None:
    assert machine_paths("open('/" + "tmp/x')")
    assert machine_paths("cd /" + "root/y")
    assert machine_paths("${TMPDIR:-/" + "var/x} a/tmp/b") == []
    source = "class A:\n    def long(self):\n" + "        a = 1\n" * 4
    assert undocumented(ast.parse(source), set()) == ["1: class A", "2: long"]
    assert undocumented(ast.parse(source), {"long"}) == ["1: class A"]
    assert undocumented(ast.parse("def f():\n" + "    a = 1\n" * 4), {"f"}) == ["1: f"]
