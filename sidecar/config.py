"""Settings: one frozen nested Struct, merged once from defaults, TOML, environment and flags."""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct

from engine import CacheOptions, EngineOptions, RequestError


class DaemonConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """runtime_dir: socket, lock and address file (0700); default ``$XDG_RUNTIME_DIR/pillion`` or
    a per-user folder under the system's temporary one. state_dir: what outlives a restart; default
    ``$XDG_STATE_HOME/pillion``. log_level: debug, info, warning or error."""

    runtime_dir: str | None = None
    state_dir: str | None = None
    log_level: str = "info"


class HttpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """host: loopback unless `api_key` is set too. port: 0 picks a free one. api_key: demanded as
    ``Authorization: Bearer`` or ``x-api-key``. Sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 7455
    api_key: str | None = None
    max_body_bytes: int = 32 << 20
    max_header_bytes: int = 64 << 10


class EngineConfig(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`EngineOptions`, and another engine in front. upstream: the OpenAI-compatible ``http://host/v1``
    that decodes. upstream_model: its name there; None takes the first it lists. upstream_key: the
    name of the environment variable with its API key. upstream_fallback: load `model` and let it
    answer while the upstream is down."""

    upstream: str | None = None
    upstream_model: str | None = None
    upstream_key: str | None = None
    upstream_fallback: bool = True


class CompletionConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inline completion. max_tokens: of one suggestion. prompt_tokens: budget of one prompt.
    multiline: ``auto`` (a whole block where the syntax opens one), ``never`` or ``always``.
    alternatives: how many to look for when the user asks by hand."""

    max_tokens: int = 96
    prompt_tokens: int = 1536
    multiline: Literal["auto", "never", "always"] = "auto"
    alternatives: int = 3


class WorkspaceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes along with completion prompts from other files of the client's folders. context:
    ``auto`` (where the model gains by it), ``on``, or ``off``, which reads and watches nothing.
    context_tokens: what it may take. max_file_bytes: larger files are not read. warm: compute
    likely prompts, and what would follow a suggestion, ahead in idle time."""

    context: Literal["auto", "on", "off"] = "auto"
    context_tokens: int = 1024
    max_file_bytes: int = 256 << 10
    warm: bool = True


class ChatConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults for what a chat request leaves out; None takes the model's own
    generation_config.json (greedy where that says nothing). max_tokens None: no limit but the
    context's end. seed None: a new one for each reply. reasoning: ``off``, ``on`` or a level that
    the model's template knows, such as ``low``; None leaves it to the template."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    reasoning: str | None = None


class EditConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Edits and refactors. rewrite_lines: a region of at most that many lines is written again, a
    longer one changed by search and replace blocks. region_lines: around a place that a refactor
    found. in_flight: files at once. max_file_bytes: larger ones are left alone. history: change
    sets that can be undone."""

    rewrite_lines: int = 120
    region_lines: int = 40
    in_flight: int = 2
    max_file_bytes: int = 1 << 20
    history: int = 50


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    daemon: DaemonConfig = DaemonConfig()
    http: HttpConfig = HttpConfig()
    engine: EngineConfig = EngineConfig()
    cache: CacheOptions = CacheOptions()
    completion: CompletionConfig = CompletionConfig()
    workspace: WorkspaceConfig = WorkspaceConfig()
    chat: ChatConfig = ChatConfig()
    edit: EditConfig = EditConfig()


class ConfigError(RequestError):
    """A setting that cannot be used; the message names where it was set."""

    code = "invalid_config"


def config_path(environ: Mapping[str, str]) -> Path:
    """Where settings are looked for: ``$PILLION_CONFIG``, else the XDG place (macOS too)."""
    if named := environ.get("PILLION_CONFIG"):
        return Path(named).expanduser().absolute()
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "pillion" / "config.toml"


def state_dir(config: Config) -> Path:
    """Where what outlives a restart goes: logs, journals. It need not exist yet."""
    if config.daemon.state_dir is not None:
        return Path(config.daemon.state_dir).expanduser()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pillion"


def load_config(
    flags: Mapping[str, object] | None = None,
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Merge defaults < TOML file < environment < flags, and check the result.

    flags: ``"section.key"`` to value; a None is a flag not given. path: a file that must exist
    (``--config``). environ: ``PILLION_<SECTION>_<KEY>``; an empty variable is as good as unset.
    Raises ConfigError naming the file, variable or flag, the key, and what is allowed.
    """
    environ = os.environ if environ is None else environ
    merged = _Merge()
    merged.add_file(path, environ)
    merged.add_environment(environ)
    for name, value in (flags or {}).items():
        if value is not None:
            section, _, key = name.partition(".")
            merged.set(section, key, value, flag_name(name))
    return merged.finish()


def flag_name(name: str) -> str:
    """``--max-width`` for ``engine.max_width``: a verb's flag is called like its key."""
    return "--" + name.partition(".")[2].replace("_", "-")


def environment_of(flags: Mapping[str, object]) -> dict[str, str]:
    """The variables that say the same as `flags`, for a child process: unlike its arguments, they
    are no business of other users of the machine."""
    return {
        f"PILLION_{name.replace('.', '_').upper()}": (
            str(value).lower() if isinstance(value, bool) else str(value)
        )
        for name, value in flags.items()
        if value is not None
    }


_SECTIONS: dict[str, Struct] = {
    field.name: field.default for field in msgspec.structs.fields(Config)
}
_KEYS = {
    section: {field.name: field.type for field in msgspec.structs.fields(type(default))}
    for section, default in _SECTIONS.items()
}


# A relative folder in a settings file is meant from where that file is.
_FOLDERS = ("engine.model", "engine.draft")


class _Merge:
    """Values as they are found, each with the place that set it."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
        self._origin: dict[str, str] = {}

    def set(
        self, section: str, key: str, value: object, origin: str, *, text: bool = False
    ) -> None:
        kind = _KEYS[section].get(key)
        if kind is None:
            raise ConfigError(
                f"{origin}: no such setting{_near(key, _KEYS[section])}", field=f"{section}.{key}"
            )
        try:
            self._values[section][key] = msgspec.convert(value, kind, strict=not text)
        except msgspec.ValidationError as wrong:
            said = str(wrong)[:1].lower() + str(wrong)[1:]
            if get_origin(kind) is Literal:
                said = f"must be one of {', '.join(get_args(kind))}, got {value!r}"
            raise ConfigError(f"{origin}: {said}", field=f"{section}.{key}") from None
        self._origin[f"{section}.{key}"] = origin

    def add_file(self, path: Path | None, environ: Mapping[str, str]) -> None:
        demanded = path is not None or bool(environ.get("PILLION_CONFIG"))
        path = path or config_path(environ)
        try:
            document = tomllib.loads(path.read_text("utf-8-sig"))
        except FileNotFoundError:
            if not demanded:
                return
            raise ConfigError(f"{path}: there is no such settings file", field="config") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", field="config") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: is not UTF-8 text", field="config") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: is not valid TOML: {error}", field="config") from None
        for section, table in document.items():
            if section not in _SECTIONS:
                raise ConfigError(
                    f"{path}: no such section [{section}]{_near(section, _SECTIONS)}", field=section
                )
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {section} must be a table: [{section}]", field=section)
            for key, value in table.items():
                if f"{section}.{key}" in _FOLDERS and str(value).startswith("."):
                    value = str(path.parent / str(value))
                self.set(section, key, value, f"{path}: [{section}] {key}")

    def add_environment(self, environ: Mapping[str, str]) -> None:
        for name, value in environ.items():
            _, _, rest = name.partition("PILLION_")
            section, _, key = rest.lower().partition("_")
            # Without a key it is no setting: PILLION_CACHE is where fetched models go.
            if name.startswith("PILLION_") and value and key and section in _SECTIONS:
                self.set(section, key, value, f"the environment variable {name}", text=True)

    def finish(self) -> Config:
        sections: dict[str, Any] = {
            section: msgspec.structs.replace(default, **self._values[section])
            for section, default in _SECTIONS.items()
        }
        config = Config(**sections)
        for name, allowed, holds in _RULES:
            section, key = name.split(".")
            value = getattr(getattr(config, section), key)
            if value is not None and not holds(value):
                origin = self._origin.get(name, f"[{section}] {key}")
                shown = "" if key == "api_key" else f", got {value!r}"
                raise ConfigError(f"{origin}: must be {allowed}{shown}", field=name)
        if config.http.api_key is None and not is_loopback(config.http.host):
            raise ConfigError(
                f"{self._origin['http.host']}: {config.http.host} is reachable from other "
                "machines; set [http] api_key (--api-key) as well, or use 127.0.0.1",
                field="http.host",
            )
        return _with_absolute_folders(config)


def cache_options(config: Config, environ: Mapping[str, str]) -> CacheOptions:
    """`[cache]` with a folder: as set, else the XDG place for what can be computed again."""
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    usual = environ.get("PILLION_CACHE") or f"{base}/pillion"
    folder = Path(config.cache.dir or f"{usual}/prefixes").expanduser().absolute()
    return msgspec.structs.replace(config.cache, dir=str(folder))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _with_absolute_folders(config: Config) -> Config:
    """The daemon does not stay in the folder it was started from, so the folder of a model or a
    drafter, which is one that starts with ``/``, ``~`` or ``.``, is made absolute. A bare name
    never means a folder: the workspace must not be able to put its own in a known one's place."""
    folders = {
        key: str(Path(name).expanduser().resolve())
        for key, name in (("model", config.engine.model), ("draft", config.engine.draft))
        if name.startswith(("~", "."))
    }
    engine = msgspec.structs.replace(config.engine, **folders)
    return msgspec.structs.replace(config, engine=engine)


def _near(name: str, known: Iterable[str]) -> str:
    known = list(known)
    if close := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}"


_Rule = tuple[str, str, Callable[[Any], bool]]


def _one_of(name: str, *allowed: object) -> _Rule:
    return name, f"one of {', '.join(map(str, allowed))}", lambda value: value in allowed


def _at_least(name: str, least: float) -> _Rule:
    return name, f"at least {least:g}", lambda value: value >= least


def _within(name: str, low: float, high: float) -> _Rule:
    return name, f"from {low:g} to {high:g}", lambda value: low <= value <= high


def _header_safe(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable() and " " not in value


def _is_address(value: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None


def _is_variable(value: str) -> bool:
    return value.isidentifier() and value.isascii()


_RULES: list[_Rule] = [
    _one_of("daemon.log_level", "debug", "info", "warning", "error"),
    ("daemon.runtime_dir", "an absolute path", lambda v: Path(v).expanduser().is_absolute()),
    ("daemon.state_dir", "an absolute path", lambda v: Path(v).expanduser().is_absolute()),
    ("http.host", "a host name or address", bool),
    _within("http.port", 0, 65535),
    ("http.api_key", "printable ASCII without blanks, and not empty", _header_safe),
    _at_least("http.max_body_bytes", 1024),
    _at_least("http.max_header_bytes", 1024),
    ("engine.model", "a model's name or folder", bool),
    _at_least("engine.context", 1),
    ("engine.draft", "auto, copy, none, or a drafter's Hub id or folder", bool),
    ("engine.draft_bits", "0, 4 or 8", lambda value: value in (0, 4, 8)),
    _at_least("engine.max_width", 1),
    _at_least("engine.prefill_chunk", 1),
    _at_least("engine.max_active", 1),
    _at_least("engine.max_queue", 1),
    _one_of("engine.dtype", "auto", "bfloat16", "float32"),
    ("engine.upstream", "an address such as http://host:8000/v1", _is_address),
    ("engine.upstream_key", "the name of an environment variable", _is_variable),
    _at_least("cache.memory", 0),
    ("cache.dir", "an absolute path", lambda v: Path(v).expanduser().is_absolute()),
    _at_least("cache.disk", 0),
    _at_least("completion.max_tokens", 1),
    _at_least("completion.prompt_tokens", 16),
    _within("completion.alternatives", 1, 8),
    _at_least("workspace.context_tokens", 0),
    _at_least("workspace.max_file_bytes", 0),
    _at_least("chat.max_tokens", 1),
    _within("chat.temperature", 0, 100),
    ("chat.top_p", "above 0 and at most 1", lambda value: 0 < value <= 1),
    _at_least("chat.top_k", 0),
    _at_least("edit.rewrite_lines", 1),
    _at_least("edit.region_lines", 1),
    _at_least("edit.in_flight", 1),
    _at_least("edit.max_file_bytes", 1),
    _at_least("edit.history", 1),
    ("chat.reasoning", "off, on, or a level of the model's template", bool),
]
