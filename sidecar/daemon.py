"""The process: one engine behind a Unix socket and an HTTP port, from start to clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from engine import EngineClient
from sidecar import tcp_socket, unix_socket
from sidecar.config import Config
from sidecar.http.app import create_app, uvicorn_options
from sidecar.lsp.server import serve_connection
from sidecar.metrics import version
from sidecar.runtime_dir import Address, RuntimeDir
from sidecar.services import Services

log = logging.getLogger(__name__)

# At the end, open requests may finish for this long before the engine ends them.
DRAIN_SECONDS = 2.0
# A thread in the middle of reading weights cannot be interrupted; nobody waits longer for it.
ENGINE_STOP_SECONDS = 10.0
# What the doors get to write their last answers.
CLOSE_SECONDS = 3.0

# More than the HTTP door's connections, editors, model and cache files together. macOS allows a
# process 256 unless it asks.
OPEN_FILES = 4096

EXIT_OK, EXIT_FAILURE, EXIT_ENGINE = 0, 1, 3


class Daemon:
    """Owns the process: its sockets, its signals, its lock.

    engine: not started yet. After `run`, `engine_left_running` says whether the engine's thread
    outlived its time limit, so that only leaving the process ends it.
    """

    def __init__(self, config: Config, engine: EngineClient) -> None:
        self._config = config
        self._engine = engine
        self._runtime = RuntimeDir.of(config.daemon)
        self._ending = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self.engine_left_running = False

    async def run(self, opened: Callable[[Services, Address], None] | None = None) -> int:
        """Serve until a signal, `Services.shutdown` or the engine's end; return the exit code.

        opened: called once both doors answer, which is before the model is loaded. Raises
        PillionError where the daemon cannot start: `AlreadyRunning`, `SocketError`, `PortError`.
        """
        allow_open_files()
        self._runtime.create()
        with contextlib.ExitStack() as held:
            held.enter_context(self._runtime.locked())
            unix = held.enter_context(unix_socket.bound(self._runtime.socket))
            tcp = held.enter_context(contextlib.closing(tcp_socket.listen(self._config.http)))
            held.enter_context(self._signals())
            services = Services(
                engine=self._engine,
                config=self._config,
                shutdown=self._ending.set,
                socket=str(self._runtime.socket),
                url=tcp_socket.url_of(tcp),
            )
            held.callback(services.workspace.close)
            lsp = await self._serve_lsp(unix, services)
            http = HttpServer(services)
            http_task = asyncio.create_task(http.serve(sockets=[tcp]), name="http")
            try:
                await self._listening(http, http_task)
                address = self._address(services)
                self._runtime.write_address(address)
                held.callback(self._runtime.remove_address)
                self._engine.start()
                if opened is not None:
                    opened(services, address)
                code = await self._until_over(http_task)
            finally:
                await self._close(lsp, http, http_task)
        return code

    async def _listening(self, http: HttpServer, http_task: asyncio.Task[None]) -> None:
        up = asyncio.create_task(http.listening.wait())
        await asyncio.wait({up, http_task}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if http_task.done():
            await http_task

    def _address(self, services: Services) -> Address:
        return Address(
            pid=os.getpid(),
            socket=services.socket or "",
            url=services.url or "",
            version=version(),
            model=self._config.engine.model,
            api_key=self._config.http.api_key,
        )

    async def _serve_lsp(self, listener: socket.socket, services: Services) -> asyncio.Server:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(serve_connection(reader, writer, services), name="lsp")
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return await asyncio.start_unix_server(connected, sock=listener)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first one ends the daemon cleanly, the second at once. They are left alone where the
        daemon does not run in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

        def received(number: signal.Signals) -> None:
            if self._ending.is_set():
                os._exit(128 + number)
            log.info("%s: stopping", number.name)
            self._ending.set()

        for number in wanted:
            loop.add_signal_handler(number, received, number)
        try:
            yield
        finally:
            for number in wanted:
                loop.remove_signal_handler(number)

    async def _until_over(self, http: asyncio.Task[None]) -> int:
        ending = asyncio.create_task(self._ending.wait())
        engine = asyncio.create_task(self._engine_over())
        try:
            await asyncio.wait({ending, engine, http}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            engine.cancel()
        if self._ending.is_set():
            return EXIT_OK
        self._ending.set()
        if engine.done():
            return EXIT_ENGINE
        log.error("the HTTP door ended by itself: %s", http.exception())
        return EXIT_FAILURE

    async def _engine_over(self) -> None:
        """Return when the engine failed or stopped without being asked to; say why."""
        was_ready = False
        while (status := self._engine.status()).state in ("loading", "ready"):
            was_ready = was_ready or status.state == "ready"
            await self._engine.changed()
        why = status.detail or f"it is {status.state}"
        if was_ready:
            log.error("the engine died: %s; start the daemon again", why)
        else:
            log.error(
                "%s could not be loaded: %s; `pillion models` lists what can be, "
                "`pillion doctor` checks this machine",
                self._config.engine.model,
                why,
            )

    async def _close(
        self, lsp: asyncio.Server, http: HttpServer, http_task: asyncio.Task[None]
    ) -> None:
        """Take no more clients, let open requests end, then the engine, then the connections."""
        lsp.close()
        http.should_exit = True
        await self._drained(DRAIN_SECONDS)
        try:
            await asyncio.wait_for(self._engine.stop(), ENGINE_STOP_SECONDS)
        except TimeoutError:
            self.engine_left_running = True
            log.warning("the engine did not stop within %.0f s", ENGINE_STOP_SECONDS)
        await self._drained(CLOSE_SECONDS)
        # The doors have the endings now; writing them takes a few turns of the loop.
        await asyncio.sleep(0.05)
        for connection in self._connections:
            connection.cancel()
        await asyncio.wait({http_task, *self._connections}, timeout=CLOSE_SECONDS)
        http_task.cancel()
        await asyncio.gather(http_task, return_exceptions=True)

    async def _drained(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._engine.open_requests:  # noqa: ASYNC110 - briefly, at the very end
                    await asyncio.sleep(0.02)


def allow_open_files() -> None:
    """Raise this process's own limit on open files to `OPEN_FILES`, or as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class HttpServer(uvicorn.Server):
    """uvicorn on our loop and our listener; the signals stay the daemon's."""

    def __init__(self, services: Services) -> None:
        super().__init__(
            uvicorn.Config(create_app(services), **uvicorn_options(services.config.http))
        )
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
