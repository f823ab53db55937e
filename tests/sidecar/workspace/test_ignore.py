"""What stays out: git's rules as git itself applies them, our own files, and secrets."""

import os
import shutil
import subprocess

import pytest

from sidecar.workspace.ignore import Rules, is_secret, outer_rules
from sidecar.workspace.listing import Listing
from sidecar.workspace.root import Root


def listed(folder):
    """Every path that is not ignored."""
    root = Root(folder)
    listing = Listing(root, outer_rules(root.path))
    listing.scan()
    return {
        f"{path}/{name}" if path else name
        for path in listing.directories()
        for name in listing.directory(path).files
    }


def write(folder, files):
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


TREE = {
    ".gitignore": "*.log\nbuild/\n/only_top\n!keep.log\ndocs/*.txt\n\\!odd\n# a comment\n\n!\n",
    "a.py": "",
    "a.log": "",
    "keep.log": "",
    "only_top": "",
    "sub/only_top": "",
    "sub/build/x.py": "",
    "build": "a file of that name",
    "docs/x.txt": "",
    "docs/deep/x.txt": "",
    "!odd": "",
    "sub/.gitignore": "!a.log\n*.tmp\nx y\n",
    "sub/a.log": "",
    "sub/b.tmp": "",
    "sub/x y": "",
    "sub/deep/c.tmp": "",
    "b.tmp": "",
    "ünïcode/é.py": "",
}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle here")
def test_the_listing_is_what_git_lists(tmp_path, home):
    write(tmp_path, TREE | {"excluded.py": "", "global.me": ""})
    write(home, {"mine": "*.me\n"})
    git = ["git", "-C", str(tmp_path), "-c", "core.quotePath=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run(["git", "config", "--global", "core.excludesFile", "~/mine"], check=True)
    write(tmp_path, {".git/info/exclude": "excluded.py\n"})
    told = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--cached", "--exclude-standard"],
        check=True,
        capture_output=True,
    )
    assert listed(tmp_path) == {name for name in told.stdout.decode().split("\0") if name}
    assert {"keep.log", "sub/a.log", "build", "ünïcode/é.py"} <= listed(tmp_path)


def test_without_git_the_ignore_files_still_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    write(tmp_path, {".gitignore": "x.py\n", "x.py": "", "y.py": ""})
    assert listed(tmp_path) == {".gitignore", "y.py"}


def test_a_folder_of_a_repository_heeds_the_files_above_it(tmp_path):
    write(tmp_path, {".git/HEAD": "", ".gitignore": "/pkg/out.py\n*.gen\n", "pkg/out.py": ""})
    write(tmp_path, {"pkg/in.py": "", "pkg/a.gen": "", "pkg/sub/out.py": ""})
    assert listed(tmp_path / "pkg") == {"in.py", "sub/out.py"}
    (tmp_path / ".git" / "HEAD").unlink()
    (tmp_path / ".git").rmdir()
    assert "out.py" in listed(tmp_path / "pkg")


def test_pillionignore_has_the_last_word_and_ignore_the_one_before():
    rules = Rules().extended(".pillionignore", "!c.py\n").extended(".ignore", "!b.py\nc.py\n")
    rules = rules.extended(".gitignore", "[abc].py\n", base="deep")
    assert [rules.ignores(f"deep/{name}.py") for name in "abcd"] == [True, False, False, False]


def test_programs_folders_are_left_alone(tmp_path):
    write(
        tmp_path,
        {
            "environment/pyvenv.cfg": "",
            "environment/x.py": "",
            "cache/CACHEDIR.TAG": "",
            "cache/deep/x.py": "",
            "node_modules/x/index.js": "",
            ".git/x.py": "",
            "pyvenv.cfg": "",
            "a.py": "",
        },
    )
    assert listed(tmp_path) == {"pyvenv.cfg", "a.py"}


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "a/.env.local",
        "prod.env",
        ".envrc",
        "a/b.PEM",
        "server.key",
        "id_rsa",
        "x/id_work",
        "id_ed25519.pub",
        ".netrc",
        ".npmrc",
        ".pypirc",
        "credentials",
        "credentials.json",
        "secrets.yml",
        "x.tfstate",
        ".aws/config",
        "/root/.ssh/config",
        "service-account-1.json",
    ],
)
def test_secrets(path):
    assert is_secret(path)


@pytest.mark.parametrize(
    "path",
    [
        ".env.example",
        "id_generator.py",
        "secrets.py",
        "environment.py",
        "tokens.py",
        "keyring.py",
        "credentials_test.go",
        "identity",
        "src/public.ts",
    ],
)
def test_ordinary_names(path):
    assert not is_secret(path)


def test_no_ignore_file_lets_a_secret_through(tmp_path):
    write(tmp_path, {".pillionignore": "!.env\n!.ssh/\n", ".env": "", ".ssh/config": "", "a": ""})
    assert listed(tmp_path) == {".pillionignore", "a"}


def test_a_pipe_in_the_place_of_patterns_does_not_hang(tmp_path):
    (tmp_path / ".git" / "info").mkdir(parents=True)
    os.mkfifo(tmp_path / ".git" / "info" / "exclude")
    (tmp_path / "pkg").mkdir()
    os.mkfifo(tmp_path / ".gitignore")
    write(tmp_path / "pkg", {"a.py": ""})
    assert listed(tmp_path / "pkg") == {"a.py"}
    assert listed(tmp_path) == {"pkg/a.py"}
