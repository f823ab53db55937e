"""Settings: what wins, and what a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import (
    Config,
    ConfigError,
    EngineConfig,
    config_path,
    environment_of,
    load_config,
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults_without_a_file(home: Path) -> None:
    assert load_config(environ={"HOME": str(home)}) == Config()


def test_each_source_beats_the_one_before(home: Path) -> None:
    file = write(
        home / "c.toml",
        '[http]\nport = 1001\nhost = "localhost"\n[engine]\nmax_width = 2\nprefill_chunk = 64\n',
    )
    environ = {"PILLION_HTTP_PORT": "1002", "PILLION_ENGINE_MAX_WIDTH": "3"}
    config = load_config({"http.port": 1003, "engine.draft": None}, path=file, environ=environ)
    assert config.http.port == 1003
    assert config.http.host == "localhost"
    assert config.engine == EngineConfig(max_width=3, prefill_chunk=64)


def test_file_is_found_where_xdg_says(home: Path) -> None:
    write(home / "xdg/pillion/config.toml", "[http]\nport = 7\n")
    assert load_config(environ={"XDG_CONFIG_HOME": str(home / "xdg")}).http.port == 7


def test_file_named_by_the_environment(home: Path) -> None:
    file = write(home / "mine.toml", "﻿[http]\r\nport = 8\r\n")
    assert config_path({"PILLION_CONFIG": str(file)}) == file
    assert load_config(environ={"PILLION_CONFIG": str(file)}).http.port == 8


def test_environment_takes_every_kind_of_value() -> None:
    config = load_config(
        environ={
            "PILLION_ENGINE_FAST": "true",
            "PILLION_CHAT_TEMPERATURE": "0.5",
            "PILLION_ENGINE_CONTEXT": "512",
            "PILLION_HTTP_API_KEY": "12345",
            "PILLION_HTTP_HOST": "",
            "PILLION_CACHE": "/somewhere",
            "PILLION_DEBUG": "1",
        }
    )
    assert config.engine.fast is True
    assert config.chat.temperature == 0.5
    assert config.engine.context == 512
    assert config.http.api_key == "12345"
    assert config.http.host == "127.0.0.1"


def test_flags_survive_a_trip_through_the_environment() -> None:
    flags = {"engine.model": "a b", "engine.fast": True, "http.port": 0, "engine.context": None}
    assert load_config(environ=environment_of(flags)) == load_config(flags, environ={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nprot = 1\n", "[http] prot: no such setting; did you mean port?"),
        ("[htpp]\nport = 1\n", "no such section [htpp]; did you mean http?"),
        ("http = 1\n", "http must be a table: [http]"),
        ("port = 1\n", "no such section [port]"),
        ('[http]\nport = "x"\n', "[http] port: expected `int`, got `str`"),
        ("[engine]\nfast = 1\n", "[engine] fast: expected `bool`, got `int`"),
        ("[http]\nport = 70000\n", "[http] port: must be from 0 to 65535, got 70000"),
        ('[engine]\ndtype = "int8"\n', "[engine] dtype: must be one of auto, bfloat16, float32"),
        ("[engine]\nprefill_chunk = 0\n", "[engine] prefill_chunk: must be at least 1"),
        ('[completion]\nmultiline = "on"\n', "must be one of auto, never, always"),
        ("[chat]\ntop_p = 0.0\n", "[chat] top_p: must be above 0 and at most 1"),
        ("[chat]\ntemperature = nan\n", "[chat] temperature: must be from 0 to 100"),
        ('[daemon]\nruntime_dir = "run"\n', "[daemon] runtime_dir: must be an absolute path"),
        ('[http]\napi_key = "a b"\n', "[http] api_key: must be printable ASCII"),
        ('[http]\nhost = "0.0.0.0"\n', "is reachable from other machines; set [http] api_key"),
        ('[engine]\nupstream = "http://[1"\n', "must be an address such as http://host:8000/v1"),
        ("[http\n", "is not valid TOML"),
    ],
)
def test_mistakes_in_the_file_are_named(home: Path, text: str, said: str) -> None:
    file = write(home / "c.toml", text)
    with pytest.raises(ConfigError) as error:
        load_config(path=file, environ={})
    assert error.value.message.startswith(f"{file}: ")
    assert said in error.value.message


def test_a_wrong_key_is_not_repeated_to_the_terminal(home: Path) -> None:
    file = write(home / "c.toml", '[http]\napi_key = "sec ret"\n')
    with pytest.raises(ConfigError) as error:
        load_config(path=file, environ={})
    assert "sec ret" not in error.value.message


def test_mistakes_elsewhere_are_named() -> None:
    with pytest.raises(ConfigError, match="variable PILLION_HTTP_PROT: no such setting"):
        load_config(environ={"PILLION_HTTP_PROT": "1"})
    with pytest.raises(ConfigError, match="variable PILLION_HTTP_PORT: expected `int`"):
        load_config(environ={"PILLION_HTTP_PORT": "many"})
    with pytest.raises(ConfigError, match="--max-width: must be at least 1, got 0"):
        load_config({"engine.max_width": 0}, environ={})
    with pytest.raises(ConfigError, match=r"--host: 192\.168\.0\.1 is reachable"):
        load_config({"http.host": "192.168.0.1"}, environ={})


def test_a_host_for_others_needs_a_key() -> None:
    flags = {"http.host": "0.0.0.0", "http.api_key": "k"}
    assert load_config(flags, environ={}).http.host == "0.0.0.0"
    for host in ("localhost", "127.0.0.2", "::1"):
        assert load_config({"http.host": host}, environ={}).http.host == host


def test_unreadable_files(home: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such settings file"):
        load_config(path=home / "none.toml", environ={})
    with pytest.raises(ConfigError, match="there is no such settings file"):
        load_config(environ={"PILLION_CONFIG": str(home / "none.toml")})
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(path=home, environ={})
    (home / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(path=home / "latin.toml", environ={})


def test_only_a_path_means_a_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (home / "smollm2-135m").mkdir()
    load = lambda model: load_config({"engine.model": model}, environ={}).engine.model  # noqa: E731 - one line each
    assert load("smollm2-135m") == "smollm2-135m"
    assert load("./smollm2-135m") == str(home / "smollm2-135m")
    assert load("~/x") == str(home / "x")
    file = write(home / "conf/c.toml", '[engine]\nmodel = "./near"\n')
    assert load_config(path=file, environ={}).engine.model == str(home / "conf/near")
    assert load_config(environ={}).engine.draft == "auto"
