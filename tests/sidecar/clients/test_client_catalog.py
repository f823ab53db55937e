"""What each client's files become, and that they are written without loss."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from sidecar.clients.catalog import CLIENTS, find
from sidecar.clients.client import KEY_VARIABLE, Daemon
from sidecar.clients.commented_json import value_of
from sidecar.clients.configuration import ConfigurationError, changes, write

DAEMON = Daemon(url="http://127.0.0.1:7455", model="owner/name", context=32768)
LOCKED = Daemon(url="http://127.0.0.1:7455", model="m", context=32768, api_key="s3cret")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def set_up(name: str, environ: dict[str, str], daemon: Daemon = DAEMON) -> list[str]:
    client = find(name)
    assert client is not None
    planned = list(changes(client, daemon, environ))
    for change in planned:
        write(change)
    return [change.after for change in planned]


def parsed(path: Path) -> object:
    text = path.read_text()
    if path.suffix == ".toml":
        return tomllib.loads(text)
    return yaml.safe_load(text) if path.suffix in (".yml", ".yaml") else value_of(text)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("daemon", [DAEMON, LOCKED], ids=["open", "locked"])
def test_files_name_the_daemon_and_are_settled_after_one_go(client, daemon, environ, tmp_path):
    set_up(client.name, environ, daemon)
    texts = []
    for file in client.files(daemon, environ):
        assert file.path.is_relative_to(tmp_path)
        assert file.path.stat().st_mode & 0o077 == 0
        texts.append(json.dumps(parsed(file.path)))
    assert daemon.url in "".join(texts)
    assert daemon.model in "".join(texts)
    assert not any(change.needed for change in changes(client, daemon, environ))
    assert client.start(daemon, environ)


@pytest.mark.parametrize("name", ["opencode", "codex", "qwen", "pi"])
def test_a_key_is_named_and_not_written_where_that_is_possible(name, environ):
    (text,) = set_up(name, environ, LOCKED)
    assert "s3cret" not in text
    assert KEY_VARIABLE in text


def test_what_else_stands_in_a_file_stays(environ, tmp_path):
    path = tmp_path / ".config/opencode/opencode.jsonc"
    path.parent.mkdir(parents=True)
    path.write_text('{\n  // mine\n  "theme": "dark",\n  "provider": {"other": {"a": 1}}\n}\n')
    path.chmod(0o640)
    set_up("opencode", environ)
    assert "// mine" in path.read_text()
    settings = value_of(path.read_text())
    assert settings["theme"] == "dark"
    assert settings["provider"]["other"] == {"a": 1}
    assert settings["provider"]["pillion"]["options"]["baseURL"] == "http://127.0.0.1:7455/v1"
    assert path.stat().st_mode & 0o777 == 0o640
    assert not path.with_suffix(".json").exists()


def test_qwen_keeps_other_models_and_replaces_its_own(environ, tmp_path):
    path = tmp_path / ".qwen/settings.json"
    path.parent.mkdir()
    path.write_text('{"modelProviders": {"openai": [{"id": "x", "name": "X"}]}}')
    set_up("qwen", environ)
    set_up("qwen", environ, LOCKED)
    models = value_of(path.read_text())["modelProviders"]["openai"]
    assert [model["id"] for model in models] == ["x", "m"]


@pytest.mark.parametrize(
    "settings",
    ['{"modelProviders": ["x"]}', '{"modelProviders": {"openai": null}}', '{"env": null}'],
)
def test_settings_of_another_shape_are_named(environ, tmp_path, settings):
    path = tmp_path / ".qwen/settings.json"
    path.parent.mkdir()
    path.write_text(settings)
    with pytest.raises(ConfigurationError, match=r"settings\.json: \w+ is no"):
        set_up("qwen", environ)
    assert path.read_text() == settings


def test_a_linked_file_stays_a_link(environ, tmp_path):
    kept = tmp_path / "dotfiles.json"
    kept.write_text("{}")
    path = tmp_path / ".pi/agent/models.json"
    path.parent.mkdir(parents=True)
    path.symlink_to(kept)
    set_up("pi", environ)
    assert path.is_symlink()
    assert "pillion" in value_of(kept.read_text())["providers"]


def test_a_file_that_is_something_else_is_left_and_named(environ, tmp_path):
    path = tmp_path / ".pi/agent/models.json"
    path.parent.mkdir(parents=True)
    for content in (b"[]", b"\xff\xfe", b'{"providers": 3}'):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"models\.json"):
            set_up("pi", environ)
        assert path.read_bytes() == content


def test_a_file_that_changed_meanwhile_is_not_overwritten(environ, tmp_path):
    client = find("pi")
    assert client is not None
    (change,) = changes(client, DAEMON, environ)
    change.path.parent.mkdir(parents=True)
    change.path.write_text('{"providers": {}}')
    with pytest.raises(ConfigurationError, match="changed meanwhile"):
        write(change)
    assert change.path.read_text() == '{"providers": {}}'


def test_a_folder_that_cannot_be_made_is_named(environ, tmp_path):
    (tmp_path / ".pi").write_text("not a folder")
    with pytest.raises(ConfigurationError, match=r"\.pi.*: Not a directory"):
        set_up("pi", environ)
