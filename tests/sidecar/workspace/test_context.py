"""What goes along with a prompt: an order that holds still, a budget, and nothing withheld."""

import pytest

from sidecar.workspace.context import CHARACTERS_PER_TOKEN, Edited, choose
from sidecar.workspace.documents import Document
from sidecar.workspace.project import OpenProject, Project
from sidecar.workspace.root import Root

FILES = {
    "app/main.py": "from app.zoo import Lion\nfrom app.bar import drink\nimport secrets_of\n",
    "app/zoo.py": "class Lion:\n    def roar(self): return 'r'\n\nclass Fish:\n    pass\n",
    "app/bar.py": "def drink(what: str) -> None:\n    print(what)\n",
    "app/mail.py": "def send(): pass\n",
    "app/near.py": "def near(): pass\n",
    "app/empty.py": "",
    "app/other.ts": "export const a = 1\n",
    "far/away.py": "def away(): pass\n",
}


@pytest.fixture
def project(tmp_path):
    return made(tmp_path, FILES)


def made(folder, files, max_bytes=10_000):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        data = text if isinstance(text, bytes) else text.encode()
        (folder / path).write_bytes(data)
    project = Project(Root(folder), lambda paths: None, max_bytes)
    project.watcher.relist()
    return project


def chosen(project, path="app/main.py", *, buffers=(), edited=(), tokens=1000):
    sources = OpenProject(
        project, {name: Document.of(text) for name, text in dict(buffers).items()}
    )
    return choose(path, sources.source(path).outline, sources, edited, tokens)


def texts(files):
    return {one.path: one.text for one in files}


def test_imports_come_first_then_siblings_each_by_name(project):
    assert [one.path for one in chosen(project)] == [
        *("app/bar.py", "app/zoo.py"),
        *("app/mail.py", "app/near.py"),
    ]


def test_only_what_is_imported_is_shown(project):
    assert texts(chosen(project))["app/zoo.py"] == "class Lion:\n    def roar(self): ...\n"


def test_typing_in_the_file_changes_nothing(project):
    before = chosen(project)
    text = FILES["app/main.py"]
    for typed in ("x", "x = dri", "x = drink(1)\n", "def f(:\n  ", "from app.b"):
        assert chosen(project, buffers={"app/main.py": text + typed}) == before


def test_a_body_that_changes_elsewhere_changes_no_text(project):
    before = chosen(project)
    changed = FILES["app/bar.py"].replace("print(what)", "return None")
    after = chosen(project, buffers={"app/bar.py": changed})
    assert texts(after) == texts(before)
    assert after[0].content != before[0].content
    assert after[1:] == before[1:]


def test_what_is_edited_elsewhere_goes_last_and_comes_back(project):
    before = chosen(project)
    text = "def drink(what: str, how: int) -> None: ...\n"
    edited = [Edited("app/bar.py", text, 0), Edited("far/away.py", "def away(): now\n", 0)]
    buffers = {one.path: one.text for one in edited}
    after = chosen(project, buffers=buffers, edited=edited)
    assert [one.path for one in after][-2:] == ["app/bar.py", "far/away.py"]
    assert texts(after)["app/bar.py"] == text
    assert texts(after)["far/away.py"] == "def away(): now\n"
    assert [one for one in after if one.path == "app/zoo.py"] == [before[1]]
    assert chosen(project) == before


def test_an_edit_shows_whole_blocks_around_it(project):
    lines = [f"value_{n} = {n}\n" for n in range(200)]
    text = "".join(lines)
    shown = {
        texts(
            chosen(
                project,
                buffers={"far/away.py": text},
                edited=[Edited("far/away.py", text, line)],
            )
        )["far/away.py"]
        for line in range(96, 112)
    }
    assert shown == {"".join(lines[80:128])}


def test_the_buffer_wins_over_the_disk(project):
    shown = chosen(project, buffers={"app/zoo.py": "class Lion:\n    mane: int\n"})
    assert texts(shown)["app/zoo.py"] == "class Lion:\n    mane: int\n"


def test_the_disk_is_read_again_when_it_changes(project):
    before = chosen(project)
    (project.root.path / "app/bar.py").write_text("def drink(why: int) -> str: return ''\n")
    after = chosen(project)
    assert texts(after)["app/bar.py"] == "def drink(why: int) -> str: ...\n"
    (project.root.path / "app/bar.py").write_text(FILES["app/bar.py"])
    assert chosen(project) == before


def test_within_the_budget(project):
    whole = chosen(project)
    for tokens in (0, 10, 20, 30, 60):
        shown = chosen(project, tokens=tokens)
        assert sum(len(one.text) for one in shown) <= tokens * CHARACTERS_PER_TOKEN
        assert [one for one in whole if one.path in texts(shown)] or not shown
    assert chosen(project, tokens=0) == ()


def test_one_large_file_leaves_room_for_others(tmp_path):
    large = "".join(f"def large_{n}(argument: int) -> int: return 1\n" for n in range(200))
    files = FILES | {"app/zoo.py": large, "app/main.py": "import app.zoo\nimport app.bar\n"}
    shown = texts(chosen(made(tmp_path, files), tokens=200))
    assert {"app/zoo.py", "app/bar.py"} <= set(shown)
    assert len(shown["app/zoo.py"]) <= 300


def test_nothing_that_is_withheld(tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("def outside(): pass\n")
    folder = tmp_path / "p"
    main = "import ignored, linked, large, binary, token, fine\nfrom keys import id_rsa\n"
    project = made(
        folder,
        {
            ".gitignore": "ignored.py\n",
            ".pillionignore": "token.py\n",
            "main.py": main,
            "ignored.py": "def ignored(): pass\n",
            "token.py": "def token(): pass\n",
            "large.py": "def large(): pass\n" + "#" * 10_000,
            "binary.py": b"def binary(): pass\n\0\0",
            "keys/id_rsa.py": "def key(): pass\n",
            "fine.py": "def fine(): pass\n",
        },
    )
    (folder / "linked.py").symlink_to(outside)
    project.watcher.relist()
    assert [one.path for one in chosen(project, "main.py")] == ["fine.py"]


def test_a_file_that_goes_while_it_is_listed(project):
    (project.root.path / "app/bar.py").unlink()
    assert "app/bar.py" not in texts(chosen(project))


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"NAME = 'caf\xe9'\r\ndef drink():\r\n\treturn 1\r\n", "def drink(): ...\n"),
        ("def drink(é='😀'):\n\tpass\n".encode(), "def drink(é='😀'): ...\n"),
        (b"\xef\xbb\xbfdef drink(): pass\n", "def drink(): ...\n"),
        ("def drink(): pass\n".encode("utf-16"), "def drink(): ...\n"),
    ],
)
def test_any_text(tmp_path, data, shown):
    project = made(tmp_path, FILES | {"app/bar.py": data})
    assert texts(chosen(project))["app/bar.py"] == shown


def test_names_that_a_package_passes_on(tmp_path):
    files = {
        "pkg/__init__.py": "from pkg.deep import Thing\n__all__ = ['Thing']\n",
        "pkg/deep.py": "class Thing:\n    size: int\n\nclass Other: pass\n",
        "main.py": "from pkg import Thing\n",
    }
    shown = chosen(made(tmp_path, files), "main.py")
    assert texts(shown) == {"pkg/deep.py": "class Thing:\n    size: int\n"}


def test_comments_are_the_languages(tmp_path):
    files = {"a.lua": 'local b = require("b")\n', "b.lua": "local x = 1\n"}
    (one,) = chosen(made(tmp_path, files), "a.lua")
    assert one.comment == "--"


def test_a_lone_surrogate_in_a_buffer(project):
    text = "def away(): '\ud800'\n"
    edited = [Edited("far/away.py", text, 0)]
    shown = texts(chosen(project, buffers={"far/away.py": text}, edited=edited))
    assert shown["far/away.py"] == "def away(): '?'\n"
