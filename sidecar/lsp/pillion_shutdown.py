"""`pillion/shutdown`: stop the daemon, for every client."""

from __future__ import annotations

import asyncio

from sidecar.lsp.params import NoParams
from sidecar.lsp.session import OpenRequest, Session


def pillion_shutdown(session: Session, params: NoParams, request: OpenRequest) -> None:
    """The answer, null, is written before the daemon begins to stop."""
    asyncio.get_running_loop().call_soon(session.services.shutdown)
