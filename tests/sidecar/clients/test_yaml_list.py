"""One item of a list in a YAML file is changed, and nothing else."""

from __future__ import annotations

import pytest
import yaml

from sidecar.clients.yaml_list import NotThisYaml, item_of, with_item

ITEM = {"name": "Pillion", "provider": "openai", "roles": ["chat", "edit"]}
CONFIG = """# mine
name: Local
models:
  # the big one
  - name: Other  # for chat
    provider: anthropic

rules:
  - Be brief.
"""


@pytest.mark.parametrize(
    "text", ["", "name: Local\n", "name: Local", "models:\n- name: Other\n", "# nothing\n"]
)
def test_an_item_is_added(text):
    changed = with_item(text, "models", ITEM)
    assert changed.startswith(text)
    assert item_of(changed, "models", "Pillion") == ITEM
    before = yaml.safe_load(text) or {}
    assert yaml.safe_load(changed) == before | {"models": [*before.get("models", []), ITEM]}


def test_comments_and_what_follows_stay():
    changed = with_item(CONFIG, "models", ITEM)
    added = [line for line in changed.splitlines() if line not in CONFIG.splitlines()]
    assert added[0] == "  - name: Pillion"
    assert [line for line in changed.splitlines() if line not in added] == CONFIG.splitlines()
    assert yaml.safe_load(changed)["rules"] == ["Be brief."]


def test_an_item_of_that_name_is_replaced_and_an_equal_one_left():
    once = with_item(CONFIG, "models", ITEM)
    assert with_item(once, "models", ITEM) == once
    other = {"name": "Pillion", "provider": "openai", "roles": ["chat"]}
    again = with_item(once, "models", other)
    assert item_of(again, "models", "Pillion") == other
    assert item_of(again, "models", "Other") == {"name": "Other", "provider": "anthropic"}
    assert again.count("Pillion") == 1
    assert "# for chat" in again


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [{name: Other}]\n", "brackets"),
        ("models: 3\n", "models is no list"),
        ("- 1\n", "no YAML mapping"),
        ("a: [\n", "no YAML"),
        ("{name: Local}\n", "cannot be put in"),
        ("  name: Local\n", "cannot be put in"),
        ("name: Local\n...\n", "cannot be put in"),
    ],
)
def test_what_cannot_be_changed_is_said(text, said):
    with pytest.raises(NotThisYaml, match=said):
        with_item(text, "models", ITEM)
