"""The HTTP door: OpenAI's API on loopback."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from engine import PillionError
from sidecar.config import HttpConfig
from sidecar.http.chat_completions import ChatCompletions
from sidecar.http.completions import Completions
from sidecar.http.dashboard import dashboard_routes
from sidecar.http.endpoint import Endpoint
from sidecar.http.errors import on_bug, on_http_exception, on_pillion_error
from sidecar.http.health import health
from sidecar.http.infill import InfillDoor
from sidecar.http.limits import Limits
from sidecar.http.messages import CountTokens, Messages
from sidecar.http.metrics import metrics
from sidecar.http.models import list_models, retrieve_model
from sidecar.http.openapi import openapi
from sidecar.http.props import props
from sidecar.http.protocol import BoundedProtocol
from sidecar.http.responses import Responses
from sidecar.http.security import Security
from sidecar.http.tokens import Detokenize, Tokenize
from sidecar.services import Services


def create_app(services: Services, *, limits: Limits | None = None) -> Starlette:
    """The ASGI application. It needs no lifespan."""
    limits = limits or Limits()
    app = Starlette(
        routes=[
            *decoding_routes(services, limits),
            Route("/v1/models", partial(list_models, services=services)),
            Route("/v1/models/{id:path}", partial(retrieve_model, services=services)),
            Route("/openapi.json", openapi),
            Route("/props", partial(props, services=services)),
            Route("/health", partial(health, services=services)),
            Route("/metrics", partial(metrics, services=services)),
            *dashboard_routes(services, limits),
        ],
        middleware=[Middleware(Security, services.config.http)],
        exception_handlers={
            PillionError: on_pillion_error,
            HTTPException: on_http_exception,
            Exception: on_bug,
        },
    )
    # A redirect would answer a mistyped path with an empty body instead of the endpoints.
    app.router.redirect_slashes = False
    return app


def decoding_routes(services: Services, limits: Limits) -> list[Route]:
    """The endpoints that decode."""
    endpoints: dict[str, type[Endpoint[Any]]] = {
        "/v1/chat/completions": ChatCompletions,
        "/v1/completions": Completions,
        "/v1/messages": Messages,
        "/v1/messages/count_tokens": CountTokens,
        "/v1/responses": Responses,
        "/infill": InfillDoor,
        "/tokenize": Tokenize,
        "/detokenize": Detokenize,
    }
    return [
        Route(path, endpoint(services, limits), methods=["POST"])
        for path, endpoint in endpoints.items()
    ]


def uvicorn_options(config: HttpConfig) -> dict[str, Any]:
    """Keyword arguments for `uvicorn.Config(create_app(services), ...)`, for a server that runs in
    the daemon's own loop on sockets it has bound. To stop it, stop the engine first: that ends
    every open reply, and with it the connections.
    """
    return {
        "http": BoundedProtocol,
        "ws": "none",
        "loop": "none",
        "lifespan": "off",
        "interface": "asgi3",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": config.max_header_bytes,
        # Well below the usual 1,024 file descriptors, so that the other doors keep some.
        "limit_concurrency": 256,
        "timeout_keep_alive": 30,
    }
