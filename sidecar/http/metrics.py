"""`GET /metrics`: what Prometheus scrapes; with ``Accept: application/json`` the status instead."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from sidecar.http.errors import json_response
from sidecar.metrics import status_report
from sidecar.prometheus import CONTENT_TYPE, exposition
from sidecar.services import Services


async def metrics(request: Request, services: Services) -> Response:
    """Always 200: whether the model answers is in the metrics."""
    if request.headers.get("accept", "").startswith("application/json"):
        return json_response(status_report(services), 200)
    # Starlette would add a charset of its own to a text media type.
    return Response(exposition(services).encode(), headers={"content-type": CONTENT_TYPE})
