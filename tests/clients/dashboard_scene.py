"""A daemon with something to look at: an agent's turns, an editor at work in a small project."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from private_home import private_environment, short_folder
from rpc_client import RpcClient

PROJECT = {
    "prices.py": '''"""Prices, in cents."""

from dataclasses import dataclass


@dataclass
class Price:
    amount: int
    currency: str = "EUR"

    def with_tax(self, rate: float) -> "Price":
        return Price(round(self.amount * (1 + rate)), self.currency)


def total(prices: list[Price]) -> int:
    result = 0
    for price in prices:
        result += price.amount
    return result
''',
    "stock.py": '''"""What is in stock."""

from prices import Price


class Stock:
    def __init__(self) -> None:
        self.items: dict[str, int] = {}
        self.prices: dict[str, Price] = {}

    def add(self, name: str, count: int) -> None:
        self.items[name] = self.items.get(name, 0) + count

    def take(self, name: str, count: int) -> bool:
        if self.items.get(name, 0) < count:
            return False
        self.items[name] -= count
        return True
''',
    "orders.py": '''"""Orders of what is in stock."""

from prices import Price, total
from stock import Stock


class Order:
    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.lines: list[tuple[str, int, Price]] = []

    def put(self, name: str, count: int, price: Price) -> bool:
        if not self.stock.take(name, count):
            return False
        self.lines.append((name, count, price))
        return True

    def sum(self) -> int:
        prices = [price for _, _, price in self.lines]
''',
}
SECONDS = 300
SYSTEM = {"role": "system", "content": "You are a coding agent. You write Python."}
ASKED = (
    "Write a function that adds two numbers.",
    "Explain what a list is.",
    f"Rename count to number in this code:\n```python\n{PROJECT['stock.py']}```",
    "Write a class for a bank account.",
)
READ_FILE = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
}


class Scene:
    """`url` of a daemon on the built-in model whose completions look at other files."""

    def __init__(self, home: Path, url: str, socket: str, daemon: subprocess.Popen[bytes]) -> None:
        self.home = home
        self.url = url
        self.daemon = daemon
        self._socket = socket
        self._http = httpx2.Client(base_url=url, timeout=SECONDS)

    def chat(self, text: str, max_tokens: int = 160, **fields: Any) -> dict[str, Any]:
        messages = [SYSTEM, {"role": "user", "content": text}]
        body = {"messages": messages, "max_tokens": max_tokens, "seed": 1, **fields}
        answer = self._http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        reply: dict[str, Any] = answer.json()
        return reply

    def work(self) -> None:
        """An agent's turns, then an editor's keys."""
        for text in ASKED:
            self.chat(text)
        self.chat(ASKED[0], 80, temperature=0.8)
        self.chat(ASKED[3], 60, draft=False)
        self.chat("Read the file prices.py.", tools=[READ_FILE], tool_choice="required")
        # In a thread of its own: Playwright has a loop in the one that drives it.
        with ThreadPoolExecutor(1) as editor:
            editor.submit(asyncio.run, self._edit()).result()
        self.chat(ASKED[2], 100)

    async def _edit(self) -> None:
        folder = self.home / "shop"
        folder.mkdir()
        for name, text in PROJECT.items():
            (folder / name).write_text(text)
        async with asyncio.timeout(SECONDS):
            await self._type(folder)

    async def _type(self, folder: Path) -> None:
        rpc = await RpcClient.connect(self._socket)
        folders = [{"uri": folder.as_uri(), "name": "shop"}]
        await rpc.initialize(workspaceFolders=folders)
        for name, text in PROJECT.items():
            rpc.open((folder / name).as_uri(), text)
        orders = (folder / "orders.py").as_uri()
        lines = PROJECT["orders.py"].count("\n")
        for version, typed in enumerate(itertools.accumulate("        return tot"), 2):
            rpc.change(orders, version, typed[-1], lines, len(typed) - 1)
            if len(typed) in (8, 14, 18):
                await rpc.inline(orders, lines, len(typed))
        for name, line in (("stock.py", 14), ("prices.py", 17)):
            await rpc.inline((folder / name).as_uri(), line, 8)
        await rpc.close()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Replies are being decoded meanwhile, one after the other."""
        over = threading.Event()

        def keep_asking() -> None:
            for seed in itertools.count():
                if over.is_set():
                    return
                self.chat(ASKED[seed % 4], 700, seed=seed, temperature=0.2 * (seed % 3))

        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            yield
        finally:
            over.set()
            asking.join()

    def stop(self) -> None:
        """Idempotent."""
        self.daemon.terminate()
        self.daemon.wait(60)

    def close(self) -> None:
        self.stop()
        self._http.close()
        if self.daemon.stdout is not None:
            self.daemon.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)


def begin(port: int = 0, **settings: str) -> Scene:
    """Start the daemon and wait until it answers. settings: environment variables."""
    home = short_folder()
    environment = private_environment(home) | {"PILLION_WORKSPACE_CONTEXT": "on"} | settings
    daemon = subprocess.Popen(
        [Path(sys.executable).parent / "pillion", "serve", "--port", str(port), "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=home,
    )
    assert daemon.stdout is not None
    listening = json.loads(daemon.stdout.readline())
    ready = json.loads(daemon.stdout.readline())
    assert ready["event"] == "ready", ready
    return Scene(home, listening["url"], listening["socket"], daemon)


def chromium() -> str | None:
    """Where a Chromium is; Playwright's own would be a download."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
