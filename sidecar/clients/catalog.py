"""The clients that `pillion setup` knows, with the configuration that each reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sidecar.clients.client import (
    KEY_VARIABLE,
    Client,
    ClientFile,
    Daemon,
    config_home,
    home,
)
from sidecar.clients.commented_json import value_of, with_value
from sidecar.clients.yaml_list import with_item

T = TypeVar("T", dict[str, Any], list[Any])
NAME = "Pillion"
QUESTION = "Answer with one word."


def find(name: str) -> Client | None:
    return next((client for client in CLIENTS if client.name == name), None)


def _json_file(path: Path, *values: tuple[Sequence[str], object]) -> ClientFile:
    """A file of the user's in which these values stand under these keys."""

    def write(old: str) -> str:
        for keys, value in values:
            old = with_value(old, keys, value)
        return old

    return ClientFile(path, write)


def _own(path: Path, text: str) -> ClientFile:
    return ClientFile(path, lambda _old: text, ours=True)


def _own_json(path: Path, value: object) -> ClientFile:
    return _own(path, json.dumps(value, indent=2) + "\n")


def _first(*paths: Path) -> Path:
    """The first that is there, else the first."""
    return next((path for path in paths if path.exists()), paths[0])


# OpenCode: https://opencode.ai/docs/providers, "Custom provider".


def _opencode(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    folder = config_home(environ) / "opencode"
    limit = {"context": daemon.context, "output": daemon.output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": NAME,
        "options": {
            "baseURL": f"{daemon.url}/v1",
            "apiKey": f"{{env:{KEY_VARIABLE}}}" if daemon.api_key else daemon.key,
        },
        "models": {daemon.model: {"name": daemon.model, "tool_call": True, "limit": limit}},
    }
    path = _first(folder / "opencode.jsonc", folder / "opencode.json")
    path = path if path.exists() else folder / "opencode.json"
    return (_json_file(path, (("provider", "pillion"), provider)),)


# Codex: developers.openai.com/codex/config-advanced; one file a profile since 0.160.


def _codex_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("CODEX_HOME") or home(environ) / ".codex")


def _codex(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    lines = [
        f"model = {json.dumps(daemon.model)}",
        'model_provider = "pillion"',
        f"model_context_window = {daemon.context}",
        "",
        "[model_providers.pillion]",
        f'name = "{NAME}"',
        f'base_url = "{daemon.url}/v1"',
        'wire_api = "responses"',
    ]
    if daemon.api_key:
        lines.append(f'env_key = "{KEY_VARIABLE}"')
    path = _codex_home(environ) / "pillion.config.toml"
    return (_own(path, "\n".join(lines) + "\n"),)


# Claude Code: code.claude.com/docs/en/settings, "env"; --settings reads a file beside the others.


def _claude_settings(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("CLAUDE_CONFIG_DIR") or home(environ) / ".claude") / "pillion.json"


def _claude(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    variables = {
        "ANTHROPIC_BASE_URL": daemon.url,
        "ANTHROPIC_AUTH_TOKEN": daemon.key,
        "ANTHROPIC_MODEL": daemon.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": daemon.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(daemon.output),
    }
    return (_own_json(_claude_settings(environ), {"env": variables}),)


def _of(settings: Any, key: str, kind: type[T]) -> T:
    """What stands under `key`, nothing if it is not there. Raises ValueError."""
    value = settings.get(key, kind())
    if not isinstance(value, kind):
        raise ValueError(f"{key} is no {'list' if kind is list else 'object'}")
    return value


# Qwen Code: its README, "Local Model Setup".


def _qwen(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    path = home(environ) / ".qwen" / "settings.json"
    entry = {
        "id": daemon.model,
        "name": f"{daemon.model} ({NAME})",
        "baseUrl": f"{daemon.url}/v1",
        "envKey": KEY_VARIABLE,
        "generationConfig": {"contextWindowSize": daemon.context},
    }

    def write(old: str) -> str:
        settings = value_of(old)
        models = _of(_of(settings, "modelProviders", dict), "openai", list)
        others = [
            model
            for model in models
            if not (isinstance(model, dict) and NAME in str(model.get("name")))
        ]
        old = with_value(old, ("modelProviders", "openai"), [*others, entry])
        if daemon.api_key is None and KEY_VARIABLE not in _of(settings, "env", dict):
            old = with_value(old, ("env", KEY_VARIABLE), daemon.key)
        return old

    return (ClientFile(path, write),)


# pi: the page on models in the documentation of @mariozechner/pi-coding-agent.


def _pi(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    model = {
        "id": daemon.model,
        "name": daemon.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": daemon.context,
        "maxTokens": daemon.output,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": f"{daemon.url}/v1",
        "api": "openai-completions",
        "apiKey": KEY_VARIABLE if daemon.api_key else daemon.key,
        "models": [model],
    }
    path = home(environ) / ".pi" / "agent" / "models.json"
    return (_json_file(path, (("providers", "pillion"), provider)),)


# aider: aider.chat/docs/config/aider_conf.html and adv-model-settings.html.


def _aider_config(environ: Mapping[str, str]) -> Path:
    return config_home(environ) / "pillion" / "aider.conf.yml"


def _aider(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    path = _aider_config(environ)
    facts = path.with_name("aider.model.metadata.json")
    lines = {
        "model": f"openai/{daemon.model}",
        "openai-api-base": f"{daemon.url}/v1",
        "openai-api-key": daemon.key,
        "model-metadata-file": str(facts),
        "show-model-warnings": False,
    }
    metadata = {
        f"openai/{daemon.model}": {
            "max_input_tokens": daemon.context,
            "max_output_tokens": daemon.output,
            "max_tokens": daemon.output,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
    }
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in lines.items())
    return (_own(path, text), _own_json(facts, metadata))


# Continue: docs.continue.dev/reference, "models".


def _continue(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    item: dict[str, Any] = {
        "name": NAME,
        "provider": "openai",
        "model": daemon.model,
        "apiBase": f"{daemon.url}/v1",
        "apiKey": daemon.key,
        "roles": ["chat", "edit", "apply", "autocomplete"],
        "defaultCompletionOptions": {
            "contextLength": daemon.context,
            "maxTokens": daemon.output,
        },
    }
    path = home(environ) / ".continue" / "config.yaml"
    begin = "name: Local\nversion: 0.0.1\nschema: v1\n"
    return (ClientFile(path, lambda old: with_item(old or begin, "models", item)),)


# Zed: zed.dev/docs/ai/use-api-access and zed.dev/docs/ai/edit-prediction.


def _zed(daemon: Daemon, environ: Mapping[str, str]) -> tuple[ClientFile, ...]:
    model = {
        "name": daemon.model,
        "display_name": daemon.model,
        "max_tokens": daemon.context,
        "max_output_tokens": daemon.output,
        "capabilities": {"tools": True, "images": False},
    }
    chat = {"api_url": f"{daemon.url}/v1", "available_models": [model]}
    prediction = {
        "api_url": f"{daemon.url}/v1/completions",
        "model": daemon.model,
        "prompt_format": "infer",
        "max_output_tokens": 128,
    }
    return (
        _json_file(
            config_home(environ) / "zed" / "settings.json",
            (("language_models", "openai_compatible", NAME), chat),
            (("edit_predictions", "open_ai_compatible_api"), prediction),
        ),
    )


def _fixed(*words: str) -> Callable[[Daemon, Mapping[str, str]], tuple[str, ...]]:
    """Arguments in which ``MODEL`` stands for the model's name."""
    return lambda daemon, _environ: tuple(word.replace("MODEL", daemon.model) for word in words)


CLIENTS = (
    Client(
        name="opencode",
        title="OpenCode",
        program="opencode",
        wire="/v1/chat/completions",
        tokens=7200,
        files=_opencode,
        start=lambda daemon, _: f"opencode --model pillion/{daemon.model}",
        once=_fixed("run", "--model", "pillion/MODEL", QUESTION),
    ),
    Client(
        name="codex",
        title="Codex",
        program="codex",
        wire="/v1/responses",
        tokens=10100,
        files=_codex,
        start=lambda _daemon, _: "codex --profile pillion",
        once=_fixed("exec", "--profile", "pillion", "--skip-git-repo-check", QUESTION),
    ),
    Client(
        name="claude",
        title="Claude Code",
        program="claude",
        wire="/v1/messages",
        tokens=19800,
        files=_claude,
        start=lambda _daemon, environ: f"claude --settings {_claude_settings(environ)}",
        once=lambda _daemon, environ: (
            "--settings",
            str(_claude_settings(environ)),
            "-p",
            QUESTION,
        ),
    ),
    Client(
        name="qwen",
        title="Qwen Code",
        program="qwen",
        wire="/v1/chat/completions",
        tokens=18100,
        files=_qwen,
        start=lambda daemon, _: f"qwen --auth-type openai --model {daemon.model}",
        once=_fixed("--auth-type", "openai", "--model", "MODEL", "-p", QUESTION),
    ),
    Client(
        name="pi",
        title="pi",
        program="pi",
        wire="/v1/chat/completions",
        tokens=1400,
        files=_pi,
        start=lambda daemon, _: f"pi --provider pillion --model {daemon.model}",
        once=_fixed("--provider", "pillion", "--model", "MODEL", "-p", QUESTION),
    ),
    Client(
        name="aider",
        title="aider",
        program="aider",
        wire="/v1/chat/completions",
        tokens=700,
        files=_aider,
        start=lambda _daemon, environ: f"aider --config {_aider_config(environ)}",
        once=lambda _daemon, environ: (
            *("--config", str(_aider_config(environ)), "--no-git", "--yes-always"),
            *("--no-check-update", "--analytics-disable", "--message", QUESTION),
        ),
    ),
    Client(
        name="continue",
        title="Continue",
        wire="/v1/chat/completions",
        tokens=1000,
        files=_continue,
        start=lambda _daemon, _: f"choose {NAME} in Continue's list of models",
    ),
    Client(
        name="zed",
        title="Zed",
        wire="/v1/chat/completions",
        tokens=4000,
        files=_zed,
        start=lambda daemon, _: f"choose {daemon.model} ({NAME}) in Zed's agent panel",
        note=(
            "For predictions while typing also set "
            '"edit_predictions": {"provider": "open_ai_compatible_api"}. '
            "With an API key, Zed reads it from PILLION_API_KEY."
        ),
    ),
)
