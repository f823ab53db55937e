"""Settings: one frozen nested Struct, merged once from defaults, TOML, environment and flags."""

from __future__ import annotations

from msgspec import Struct

from engine import EngineOptions


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


class CompletionConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inline completion. max_tokens: of one suggestion. prompt_tokens: budget of one prompt.
    multiline: ``auto`` (a whole block where the syntax opens one), ``never`` or ``always``."""

    max_tokens: int = 96
    prompt_tokens: int = 1536
    multiline: str = "auto"


class ChatConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults for what a chat request leaves out; None takes the model's own
    generation_config.json (greedy where that says nothing). max_tokens None: to the context's end."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    daemon: DaemonConfig = DaemonConfig()
    http: HttpConfig = HttpConfig()
    engine: EngineOptions = EngineOptions()
    completion: CompletionConfig = CompletionConfig()
    chat: ChatConfig = ChatConfig()
