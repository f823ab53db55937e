"""Definitions without bodies, in every language of the table, and text that is not finished."""

import pytest

from sidecar.workspace.languages import LANGUAGES, language_of
from sidecar.workspace.outline import MAX_LINES, outline

PYTHON = '''\
import os
from ..x import y as z
LIMIT: int = 3
_hidden = 1
__all__ = ["A"]
@dec(1)
class A(B):
    """What it is."""
    field: int = 3
    # why
    async def method(self,
            x: int) -> int:
        return 1

    @property
    def _private(self): pass

    def __init__(self): pass
def top(): return 1
if __name__ == "__main__":
    top()
'''
TYPESCRIPT = """\
import { B } from "./x";
/** doc */
export default class F extends G { private x: number = 1; m(a: string): void { go(); } }
export const f = (a: number) => { return 1 };
export interface I { a: string }
type T = string;
namespace N { export function inner() { return 2 } }
"""
CPP = """\
#ifndef X
#include "a/b.h"
namespace n { class A : public B { public: int f(int x) const; void g() { return; } };
template <class T> T h(T x) { return x; } }
typedef int q;
static int helper(char *p) {
  return 1;
}
#endif
"""
CASES = {
    "a.py": (
        PYTHON,
        "LIMIT: int = 3\n@dec(1)\nclass A(B):\n    field: int = 3\n    async def method(self,\n"
        "            x: int) -> int: ...\n    def __init__(self): ...\ndef top(): ...\n",
        [{"LIMIT"}, {"A"}, {"top"}],
    ),
    "a.ts": (
        TYPESCRIPT,
        "export default class F extends G { private x: number = 1; m(a: string): void { ... } }\n"
        "export const f = (a: number) => { ... };\nexport interface I { a: string }\n"
        "type T = string;\nexport function inner() { ... }\n",
        [{"F"}, {"f"}, {"I"}, {"T"}, {"inner"}],
    ),
    "a.tsx": ("export const C = () => { return <a/> };\n", "export const C = () => { ... };\n", []),
    "a.js": (
        "class A { m(x) { return 1 } }\nfunction f() { return 2 }\nf();\n",
        "class A { m(x) { ... } }\nfunction f() { ... }\n",
        [{"A"}, {"f"}],
    ),
    "a.go": (
        'package x\nimport "a/b"\ntype S struct { a int }\nfunc (s *S) M(a int) error {\n'
        "\treturn nil\n}\nvar v = 2\n",
        "type S struct { a int }\nfunc (s *S) M(a int) error { ... }\nvar v = 2\n",
        [{"S"}, {"M"}, {"v"}],
    ),
    "a.rs": (
        "use crate::a::B;\npub struct S { a: i32 }\nimpl Tr for S { fn m(&self) -> i32 { 1 } }\n"
        "pub const C: i32 = 3;\n",
        "pub struct S { a: i32 }\nimpl Tr for S { fn m(&self) -> i32 { ... } }\n"
        "pub const C: i32 = 3;\n",
        [],
    ),
    "a.h": (
        CPP,
        "class A : public B { public: int f(int x) const; void g() { ... } }\n"
        "template <class T> T h(T x) { ... }\ntypedef int q;\n"
        "static int helper(char *p) { ... }\n",
        [],
    ),
    "a.c": (
        "struct P { int a; };\nint decl(int);\nint f(void) {\n  return 1;\n}\n",
        "struct P { int a; }\nint decl(int);\nint f(void) { ... }\n",
        [],
    ),
    "a.java": (
        "import p.Q;\npublic class A { private int x;\n  // why\n"
        "  public int f() { return 1; } A() {} }\n",
        "public class A { private int x;\n  public int f() { ... } A() { ... } }\n",
        [{"A"}],
    ),
    "a.lua": (
        "local M = {}\nfunction M.f(a)\n  return 1\nend\nM.h = function(x) return 2 end\n"
        "return M\n",
        "local M = {}\nfunction M.f(a) ... end\nM.h = function(x) ... end\n",
        [],
    ),
    "a.rb": (
        "module M\n  X = 1\n  class A < B\n    attr_reader :x\n    def f(a)\n      1\n    end\n"
        "  end\nend\n",
        "module M\n  X = 1\n  class A < B\n    attr_reader :x\n    def f(a) ...\n  end\nend\n",
        [{"M"}],
    ),
}


@pytest.mark.parametrize("path", CASES)
def test_definitions(path):
    text, shown, names = CASES[path]
    found = outline(text, language_of(path), path).definitions
    assert "".join(one.text for one in found) == shown
    for one, expected in zip(found, names, strict=False):
        assert expected <= one.names


def test_every_language_is_tried():
    tried = {language_of(path).name for path in CASES}
    assert {language.name for language in LANGUAGES} == tried


@pytest.mark.parametrize("path", CASES)
def test_any_start_of_a_file_gives_some_outline(path):
    text = CASES[path][0]
    for end in range(0, len(text), 7):
        for one in outline(text[:end], language_of(path), path).definitions:
            assert one.text.endswith("\n")
            assert len(one.text.splitlines()) <= MAX_LINES


def test_a_table_of_data_is_cut():
    text = "TABLE = {\n" + "".join(f"    {n}: 'x',\n" for n in range(500)) + "}\n"
    (one,) = outline(text, language_of("a.py")).definitions
    assert one.text.count("\n") == MAX_LINES
    (one,) = outline(f"X = '{'y' * 10000}'\n", language_of("a.py")).definitions
    assert len(one.text) < 500


@pytest.mark.parametrize(
    "text", ["def é😀(): pass\n", "def f():\r\n\treturn 1\r\n", "\udc80 = 1\n"]
)
def test_odd_text(text):
    for one in outline(text, language_of("a.py")).definitions:
        assert "\r" not in one.text
        one.text.encode()


@pytest.mark.parametrize("path", ["a.txt", "Makefile", "a", ".py", "a.PY.bak"])
def test_other_files_have_no_language(path):
    assert language_of(path) is None


def test_suffixes_in_capitals():
    assert language_of("A.PY").name == "python"
    assert language_of("x/a.d.ts").name == "typescript"
    assert language_of("a.js").name == "javascript"
