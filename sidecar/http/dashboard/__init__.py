"""`GET /`: a page for people to look at. It costs nothing while nobody does, but for the record of
the last requests, which is bounded, in memory, and shows no text."""

from __future__ import annotations

from starlette.routing import Route

from sidecar.http.dashboard.feed import Feed
from sidecar.http.dashboard.page import Page
from sidecar.http.dashboard.record import Record
from sidecar.http.dashboard.replay import Replay
from sidecar.http.limits import Limits
from sidecar.services import Services


def dashboard_routes(services: Services, limits: Limits) -> list[Route]:
    """The page, what it is made of, what it is fed with, and the one thing that it can ask for."""
    record = Record()
    services.engine.observers.append(record)
    page = Page()
    return [
        Route("/", page),
        Route("/dashboard/events", Feed(services, record, limits), methods=["GET"]),
        Route("/dashboard/replay", Replay(services, record, limits), methods=["POST"]),
        Route("/dashboard/{name}", page),
    ]
