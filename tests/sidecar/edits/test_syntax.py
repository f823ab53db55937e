import itertools

import pytest

from sidecar.edits.syntax import Syntax, language_of, regions

PYTHON = """import a
from b import old
class C:
    def old(self, old=1):
        return self.old + f(old=old)
def old(é):
    # old
    return "old"
def other(x):
    old = 3
    return old, older
"""


def test_what_a_word_stands_for():
    found = Syntax(PYTHON, "python").occurrences("old")
    assert [(one.line, one.role, one.scope) for one in found] == [
        (1, "name", ""),
        (3, "definition", "member"),
        (3, "definition", "local"),
        (4, "member", ""),
        (4, "keyword", ""),
        (4, "name", ""),
        (5, "definition", "top"),
        (6, "text", ""),
        (7, "text", ""),
        (9, "definition", "local"),
        (10, "name", ""),
    ]
    assert all(PYTHON[one.start : one.end] == "old" for one in found)
    assert found[-1].local == (PYTHON.index("def other"), len(PYTHON) - 1)


@pytest.mark.parametrize(
    ("language", "text", "roles"),
    [
        ("go", "package a\nfunc old() int { return x.old }\n", ["definition", "member"]),
        ("rust", "fn old() -> i32 { s.old }", ["definition", "member"]),
        ("typescript", "function old() {}\nold();\nx.old;", ["definition", "name", "member"]),
        ("tsx", "const old = <old a={old}/>;", ["definition", "name", "name"]),
        ("javascript", "class A { old() { this.old } }", ["definition", "member"]),
        ("java", "class A { void old() { this.old(); } }", ["definition", "member"]),
        ("c", "int old(void) { return s->old; }", ["definition", "member"]),
        ("cpp", "int old() { return s.old; } // old", ["definition", "member", "text"]),
        ("ruby", "def old\n  'old'\nend", ["name", "text"]),
        ("lua", "local function old() return old() end", ["definition", "name"]),
        ("", "old", ["text"]),
    ],
)
def test_every_language_tells_names_from_text(language, text, roles):
    assert [one.role for one in Syntax(text, language).occurrences("old")] == roles


def test_where_a_text_does_not_parse():
    assert Syntax("a = 1\ndef f(:\n", "python").error_line() == 1
    assert Syntax("a = 1\n", "python").error_line() is None
    assert Syntax("def f(:", "").error_line() is None


def test_regions_are_whole_parts_and_apart():
    syntax = Syntax(PYTHON, "python")
    assert regions(syntax, [1], 4) == [(1, 2)]
    assert regions(syntax, [4, 3, 6], 4) == [(2, 5), (5, 8)]
    assert regions(syntax, [3], 2) == [(3, 5)]
    assert regions(syntax, [3], 100) == [(0, 11)]
    assert regions(Syntax("a\n" * 50, ""), [20], 10) == [(15, 25)]


@pytest.mark.parametrize("lines", [[0], [5, 6], list(range(11))])
@pytest.mark.parametrize("most", [1, 3, 30])
def test_regions_hold_every_line_that_was_found(lines, most):
    found = regions(Syntax(PYTHON, "python"), lines, most)
    assert all(any(start <= line < end for start, end in found) for line in lines)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("a/b.py", "python"),
        ("X.TSX", "tsx"),
        ("a.h", "cpp"),
        ("Makefile", ""),
        ("a.md", "markdown"),
    ],
)
def test_a_files_language(path, language):
    assert language_of(path) == language


CLASS = """import os


class A:
    x = 1

    @deco
    def f(self):
        return lambda: 1


y = 2
"""


@pytest.mark.parametrize(
    ("line", "most", "part"),
    [
        (8, 40, (7, 9)),
        (7, 40, (7, 9)),
        (4, 40, (3, 9)),
        (8, 1, (8, 9)),
        (11, 4, (11, 12)),
    ],
)
def test_the_smallest_definition_around_a_line(line, most, part):
    """Of several lines, so not a lambda. Where it is too long, or there is none, as much of the
    text as may be."""
    assert Syntax(CLASS, "python").definition(line, most) == part


@pytest.mark.parametrize(
    ("language", "text", "part"),
    [
        ("javascript", "f(\n  () => {\n    g()\n  })\n", (1, 4)),
        ("typescript", "interface I {\n  a: number\n}\nlet b = 1\n", (0, 3)),
        ("rust", "struct S {\n    a: u8,\n}\n", (0, 3)),
        ("go", "package p\n\nfunc f() {\n\tg()\n}\n", (2, 5)),
        ("c", "int f(void) {\n  return 1;\n}\n", (0, 3)),
        ("", "a\nb\nc\n", (0, 4)),
    ],
)
def test_definitions_of_other_languages(language, text, part):
    line = next(n for n, one in enumerate(text.split("\n")) if one and one[0] in " \tb")
    assert Syntax(text, language).definition(line, 40) == part
