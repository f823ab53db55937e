"""A command in the documents exists, with these flags."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from documentation import (
    DOCUMENTS,
    command_lines,
    commands,
    mentions,
    shell_blocks,
    simple_commands,
)
from source_tree import ROOT, text

from sidecar.cli import VERBS, load_verb
from sidecar.config import Config


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", text(Path("Makefile")), re.MULTILINE))


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_make_targets_exist(path: Path) -> None:
    words = {word for arguments in mentions(path, "make") for word in arguments}
    assert {word for word in words if "=" not in word and word != "..."} <= make_targets()


def test_every_make_target_is_explained() -> None:
    explained = {
        word for arguments in mentions(Path("CONTRIBUTING.md"), "make") for word in arguments
    }
    assert make_targets() - {"help"} <= explained


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_commands_parse(path: Path) -> None:
    """The verb, its flags and its arguments are as the command itself wants them."""
    for verb, *arguments in commands(path, "pillion"):
        load_verb(verb).make_context(f"pillion {verb}", arguments)


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_mentioned_verbs_and_flags_exist(path: Path) -> None:
    for verb, *arguments in mentions(path, "pillion"):
        flags = {word.split("=")[0] for word in arguments if word.startswith("-")}
        assert verb in VERBS or verb in {"--help", "--version"}, f"no such verb: {verb}"
        if flags:
            known = {flag for option in load_verb(verb).params for flag in option.opts}
            assert flags <= known | {"--help"}


def test_every_verb_is_in_the_readme() -> None:
    assert set(VERBS) <= {arguments[0] for arguments in mentions(Path("README.md"), "pillion")}


def test_every_setting_is_in_the_readme() -> None:
    """With its default, which is how a reader knows what to change."""
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (.+?) \|", text(Path("README.md")), re.MULTILINE)
    settings = {
        f"{section}.{key}": "unset" if value is None else f"`{msgspec.json.encode(value).decode()}`"
        for section, keys in msgspec.to_builtins(Config()).items()
        for key, value in keys.items()
    }
    assert dict(rows) == settings


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text(path))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not ((ROOT / path).parent / link).exists()] == []


def test_the_reader_of_commands() -> None:
    block = (
        "$ A=1 make serve | tee x\noutput\n$ pillion complete a.py \\\n  --line 2 && make test\n"
    )
    found = [list(simple_commands(line)) for line in command_lines(block)]
    assert found == [
        [["make", "serve"], ["tee", "x"]],
        [["pillion", "complete", "a.py", "--line", "2"], ["make", "test"]],
    ]
    assert list(shell_blocks("```sh\nmake\n```\n```toml\nx\n```\n")) == ["make\n"]
