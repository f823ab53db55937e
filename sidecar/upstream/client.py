"""The engine's client, with an upstream behind it where the settings name one."""

from __future__ import annotations

from collections.abc import Mapping

from engine import CacheOptions, EngineClient, engine_backend, engine_client
from sidecar.config import ConfigError, EngineConfig


def client_of(
    config: EngineConfig, cache: CacheOptions, environ: Mapping[str, str]
) -> EngineClient:
    """Not started yet. Raises ConfigError where the upstream's key is named but not there."""
    if config.upstream is None:
        return engine_client(config, cache)
    # HTTP's client takes a while to import.
    from sidecar.upstream.backend import UpstreamBackend

    key = None
    if config.upstream_key is not None:
        key = environ.get(config.upstream_key)
        if not key:
            raise ConfigError(
                f"[engine] upstream_key: there is no environment variable {config.upstream_key}",
                field="engine.upstream_key",
            )
    backend = UpstreamBackend(
        config.upstream,
        model=config.upstream_model,
        key=key,
        local=engine_backend(config, cache) if config.upstream_fallback else None,
        context=config.context,
        most_open=config.max_queue,
    )
    return EngineClient(backend)
