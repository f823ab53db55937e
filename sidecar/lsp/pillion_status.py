"""`pillion/status`: what the daemon is doing. Answers while the model loads."""

from __future__ import annotations

from typing import Any

from sidecar.lsp.params import NoParams
from sidecar.lsp.session import OpenRequest, Session
from sidecar.metrics import status_report


def pillion_status(session: Session, params: NoParams, request: OpenRequest) -> dict[str, Any]:
    return status_report(session.services)
