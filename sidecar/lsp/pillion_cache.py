"""`pillion/cache`: look at the prefix cache, clear it, or have it check itself."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.lsp.params import Params
from sidecar.lsp.session import OpenRequest, Session


class CacheParams(Params, frozen=True, kw_only=True):
    """action: ``show``, ``tree``, ``clear`` or ``verify``."""

    action: str = "show"


async def pillion_cache(
    session: Session, params: CacheParams, request: OpenRequest
) -> dict[str, Any]:
    """`engine.CacheReport` as plain JSON types."""
    report: dict[str, Any] = msgspec.to_builtins(await session.services.engine.cache(params.action))
    return report
