"""`GET /props`: what llama.cpp's clients look at before they ask for anything."""

from __future__ import annotations

import importlib.metadata

from starlette.requests import Request
from starlette.responses import Response

from sidecar.http.errors import json_response
from sidecar.http.models import served_model
from sidecar.http.schema.infill import DefaultSettings, Props
from sidecar.services import Services


async def props(_request: Request, services: Services) -> Response:
    """The loaded model's properties; 503 while there is none."""
    model = served_model(services)
    return json_response(
        Props(
            default_generation_settings=DefaultSettings(n_ctx=model.context),
            total_slots=services.config.engine.max_active,
            model_alias=model.id,
            model_path=model.id,
            build_info=f"pillion {importlib.metadata.version('pillion')}",
        )
    )
