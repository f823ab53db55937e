"""A daemon inside the process of one verb: ``--local``."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import msgspec

from engine import EngineClient, engine_client
from sidecar.config import Config
from sidecar.daemon import Daemon
from sidecar.runtime_dir import Address
from sidecar.services import Services


@contextlib.contextmanager
def private_daemon(config: Config, engine: EngineClient | None = None) -> Iterator[Address]:
    """The same doors as the user's daemon has, but in a folder of their own, on a free port and
    behind a key that nobody else knows, until the block ends. engine: in place of the configured
    one."""
    with tempfile.TemporaryDirectory(prefix="pillion-") as folder:
        config = msgspec.structs.replace(
            config,
            daemon=msgspec.structs.replace(config.daemon, runtime_dir=folder),
            http=msgspec.structs.replace(
                config.http, host="127.0.0.1", port=0, api_key=secrets.token_urlsafe()
            ),
        )
        with daemon_in_thread(config, engine or engine_client(config.engine)) as address:
            yield address


@contextlib.contextmanager
def daemon_in_thread(config: Config, engine: EngineClient) -> Iterator[Address]:
    """A daemon on a thread of its own, from when its doors answer until the block ends. Raises
    what `Daemon.run` raises."""
    opened: Future[tuple[asyncio.AbstractEventLoop, Services, Address]] = Future()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        await Daemon(config, engine).run(
            lambda services, address: opened.set_result((loop, services, address))
        )

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    thread = threading.Thread(target=run, name="daemon", daemon=True)
    thread.start()
    loop, services, address = opened.result()
    try:
        yield address
    finally:
        # The loop is closed already where the engine failed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(services.shutdown)
        thread.join()
