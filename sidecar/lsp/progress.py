"""``$/progress`` of one request: what it does, how far it is, and what there is of its result."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from lsprotocol import types

from sidecar.lsp.jsonrpc import Id, RpcError
from sidecar.lsp.session import OpenRequest, Session


class Progress:
    """Use as a context manager around the work. token: the client's; where it gave none, one is
    created if the client can show it. Its cancel button cancels the request."""

    def __init__(
        self,
        session: Session,
        request: OpenRequest,
        token: Id | None,
        *,
        partial: Id | None = None,
    ) -> None:
        self._session = session
        self._request = request
        self._token = token
        self._partial = partial
        self._creating: asyncio.Task[None] | None = None
        self._title = ""
        self._told = -1

    def __enter__(self) -> Progress:
        if self._token is not None:
            self._session.in_progress[self._token] = self._request
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._creating is not None:
            self._creating.cancel()
        if self._token is not None:
            self._session.in_progress.pop(self._token, None)
        if self._title:
            self._say(types.WorkDoneProgressEnd())

    def begin(self, title: str) -> None:
        """Work begins. title: for people; the product's name is put before it."""
        self._title = f"Pillion: {title}"
        if self._token is not None:
            self._begin()
        elif self._session.shows_progress:
            self._creating = asyncio.create_task(self._create(), name="progress")

    def report(self, share: float, message: str | None = None) -> None:
        """share: of the work that is done, 0 to 1. Nothing is sent where nothing new is to see."""
        percentage = min(100, int(100 * share))
        if percentage > self._told or message is not None:
            self._told = max(percentage, self._told)
            self._say(types.WorkDoneProgressReport(message=message, percentage=self._told))

    def part(self, value: object) -> None:
        """A piece of the result, where the client wants pieces."""
        if self._partial is not None:
            self._session.notify(types.PROGRESS, {"token": self._partial, "value": value})

    async def _create(self) -> None:
        """The work does not wait for the client's answer."""
        token = self._session.next_id()
        params = types.WorkDoneProgressCreateParams(token)
        with contextlib.suppress(RpcError):
            await self._session.ask(types.WINDOW_WORK_DONE_PROGRESS_CREATE, params)
            self._token = token
            self._session.in_progress[token] = self._request
            self._begin()

    def _begin(self) -> None:
        self._say(
            types.WorkDoneProgressBegin(title=self._title, cancellable=True, percentage=0),
        )

    def _say(self, value: object) -> None:
        if self._token is not None:
            self._session.notify(types.PROGRESS, types.ProgressParams(self._token, value))
