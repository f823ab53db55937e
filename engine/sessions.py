"""Which requests belong together: a session's own thread, and what is asked beside it. Pure."""

from __future__ import annotations

from engine.messages import GenerateRequest, Priority

MOST_SESSIONS = 256


class Sessions:
    """Knows the sessions that have a thread of their own (an agent's conversation with its tools).

    What else such a session asks without tools is an aside (a title, a summary): it yields to the
    thread, and does not take its place in the cache. A session that never had tools, a user's plain
    chat, has no asides.
    """

    def __init__(self) -> None:
        # The one heard of last comes last.
        self._threads: dict[str, None] = {}

    def heard(self, request: GenerateRequest) -> None:
        """A request has come."""
        session = request.session
        if session is None or not request.tools or request.priority is Priority.IDLE:
            return
        self._threads.pop(session, None)
        self._threads[session] = None
        if len(self._threads) > MOST_SESSIONS:
            del self._threads[next(iter(self._threads))]

    def aside(self, request: GenerateRequest) -> bool:
        """Whether it is asked beside its session's thread, whichever came first."""
        return not request.tools and request.session in self._threads

    def thread_of(self, request: GenerateRequest) -> str | None:
        """The session that it carries on; None where it is an aside, or a replay in idle time."""
        if request.priority is Priority.IDLE or self.aside(request):
            return None
        return request.session
