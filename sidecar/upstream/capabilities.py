"""What an upstream is and can do, as it tells itself."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine import ModelInfo
from sidecar.upstream.connection import Connection, Refused, Unavailable
from sidecar.upstream.prompt import VOCABULARY, Mode, marks_of

UNKNOWN_CONTEXT = 32768
"""Taken where an upstream does not say how long a prompt may be."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """model: its name there. context: in tokens; None where it does not say. gaps: how it fills
    them. tools: False where it says that its chat template shows the model none."""

    model: str
    context: int | None
    gaps: Mode
    tools: bool = True


async def look(connection: Connection, wanted: str | None) -> Capabilities:
    """Ask the upstream. wanted: the model to use; None takes the first. Raises Unavailable."""
    models = await _models(connection, wanted)
    model = wanted or next(iter(models), None)
    if model is None:
        raise Unavailable("it lists no model; name one as [engine] upstream_model")
    props = await _props(connection)
    # Servers of one model answer to names that they do not list.
    facts = models.get(model) or (next(iter(models.values())) if len(models) == 1 else {})
    return Capabilities(
        model=model,
        context=_context(facts, props),
        gaps=_gaps(model, props),
        tools=_tools(props),
    )


async def _models(connection: Connection, wanted: str | None) -> dict[str, dict[str, Any]]:
    """What it lists. Where the model is known anyway, it need not be able to."""
    try:
        listed = await connection.get(f"{connection.url}/models")
        return {str(model["id"]): model for model in listed["data"]}
    except Unavailable as error:
        if error.down or wanted is None:
            raise
    except Refused as error:
        if wanted is None:
            raise Unavailable(f"{error.message}; is it an OpenAI-compatible /v1?") from error
    except (KeyError, TypeError) as error:
        if wanted is None:
            raise Unavailable("what it lists as its models is no such list") from error
    return {}


async def _props(connection: Connection) -> dict[str, Any] | None:
    """llama.cpp's (and Pillion's) `/props`, beside which there is `/infill`."""
    try:
        props = await connection.get(f"{connection.root}/props")
    except (Unavailable, Refused):
        return None
    return props if isinstance(props, dict) and "default_generation_settings" in props else None


def _context(model: dict[str, Any], props: dict[str, Any] | None) -> int | None:
    settings = (props or {}).get("default_generation_settings") or {}
    said = (
        settings.get("n_ctx") if isinstance(settings, dict) else None,
        model.get("max_model_len"),
        model.get("context_length"),
    )
    return next((int(n) for n in said if isinstance(n, int) and n > 0), None)


def _gaps(model: str, props: dict[str, Any] | None) -> Mode:
    # Another Pillion streams only what fills a gap before a `suffix`.
    if props is not None and not str(props.get("build_info")).startswith("pillion"):
        return "infill"
    return "tokens" if marks_of(model) is not None else "suffix"


def _tools(props: dict[str, Any] | None) -> bool:
    # llama.cpp then leaves tools out of the prompt, and takes no notice of what is said of them.
    can = (props or {}).get("chat_template_caps")
    return not (isinstance(can, dict) and can.get("supports_tools") is False)


def model_info(found: Capabilities, url: str, context: int | None) -> ModelInfo:
    """What the doors are told of it. context: as set, which wins where it is less."""
    known = found.context or UNKNOWN_CONTEXT
    return ModelInfo(
        id=found.model,
        path=url,
        family="upstream",
        context=min(context, known) if context is not None else known,
        vocab_size=VOCABULARY,
        parameters=0,
        weight_bytes=0,
        cache_bytes_per_token=0,
        quantization="unknown",
        eos_token_ids=(),
        has_chat_template=True,
        # A gap's prompt is none that could be told by its tokens.
        has_fim=False,
        fingerprint="upstream",
    )
