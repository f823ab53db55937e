import pytest

from engine import RequestError
from sidecar.edits.renaming import only_renamed, rename
from sidecar.edits.syntax import Syntax


def renamed(files, old="old", new="fresh"):
    """Texts, and undecided lines, by path."""
    found = rename({path: Syntax(text, "python") for path, text in files.items()}, old, new)
    return {path: one.text for path, one in found.items()}, {
        path: one.undecided for path, one in found.items() if one.undecided
    }


def test_a_function_its_imports_and_its_calls():
    texts, undecided = renamed(
        {
            "m.py": "def old():\n    return old\n",
            "n.py": "from m import old\nimport m\nold(); m.old()\n",
        }
    )
    assert texts["m.py"] == "def fresh():\n    return fresh\n"
    assert texts["n.py"] == "from m import fresh\nimport m\nfresh(); m.fresh()\n"
    assert undecided == {}


def test_another_functions_variable_is_another_thing():
    text = "def old(): pass\ndef f(old):\n    return old\ndef g():\n    return old\n"
    texts, undecided = renamed({"m.py": text})
    assert texts["m.py"] == text.replace("old()", "fresh()").replace(
        "g():\n    return old", "g():\n    return fresh"
    )
    assert undecided == {}


def test_comments_strings_and_other_objects_are_not_decided():
    text = "def old(): pass\n# old\nx = 'old'\nthing.old()\nf(old=1)\n"
    texts, undecided = renamed({"m.py": text})
    assert texts["m.py"] == text.replace("def old", "def fresh")
    assert undecided == {"m.py": (1, 2, 3)}


def test_a_method():
    text = "class C:\n    def old(self):\n        return self.old()\nold = 1\n"
    texts, undecided = renamed({"m.py": text, "n.py": "C().old()\n"}, "C.old")
    assert texts["m.py"] == text.replace("def old", "def fresh").replace("self.old", "self.fresh")
    assert undecided == {"n.py": (0,)}


def test_two_classes_with_a_method_of_that_name_are_not_decided():
    text = "class C:\n    def old(self): pass\nclass D:\n    def old(self): self.old()\n"
    texts, undecided = renamed({"m.py": text})
    assert texts["m.py"] == text
    assert undecided == {"m.py": (1, 3)}


def test_two_files_that_define_it():
    """Each is decided in itself; which one a third file means is not."""
    texts, undecided = renamed(
        {"m.py": "def old(): pass\n", "n.py": "def old(): pass\n", "k.py": "old()\n"}
    )
    assert texts["m.py"] == "def fresh(): pass\n"
    assert undecided == {"k.py": (0,)}


def test_a_parameter_only():
    texts, undecided = renamed({"m.py": "def f(old):\n    return old\nf(old=2)\n"})
    assert texts["m.py"] == "def f(fresh):\n    return fresh\nf(old=2)\n"
    assert undecided == {"m.py": (2,)}


def test_a_name_that_is_taken_is_refused_with_its_place():
    files = {"m.py": Syntax("def old(): pass\nfresh = 1\n", "python")}
    (found,) = rename(files, "old", "fresh").values()
    assert found.reason == "has a fresh already (line 2)"
    assert found.text == files["m.py"].text


@pytest.mark.parametrize("new", ["", "a b", "1a", "class", "a-b", "a\n"])
def test_a_name_that_is_none(new):
    with pytest.raises(RequestError, match="is not a name"):
        rename({"m.py": Syntax("old = 1", "python")}, "old", new)


@pytest.mark.parametrize(
    ("after", "only"),
    [
        ("new(x); '# new'", True),
        ("old(x); '# new'", True),
        ("old(x); '# old'", True),
        ("new(y); '# new'", False),
        ("new(x);  '# new'", False),
        ("new(x)", False),
        ("newer(x); '# old'", False),
    ],
)
def test_an_answer_may_rename_and_nothing_else(after, only):
    assert only_renamed("old(x); '# old'", after, "old", "new") is only
