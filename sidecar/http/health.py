"""`GET /health`: 200 once the model answers, 503 before and after, always with the whole status."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from sidecar.http.errors import json_response
from sidecar.metrics import status_report
from sidecar.services import Services


async def health(_request: Request, services: Services) -> Response:
    report = status_report(services)
    ready = services.engine.status().state == "ready"
    return json_response(report, 200 if ready else 503)
