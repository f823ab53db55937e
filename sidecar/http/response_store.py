"""Past responses, for `previous_response_id`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine import RequestError

Message = Mapping[str, Any]


class ResponseStore:
    """Conversations by the id of the response that they ended with, in memory. The oldest ones go
    first when there are more than `most`, or when they take more than `most_bytes`."""

    def __init__(self, most: int = 256, most_bytes: int = 64 << 20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[tuple[Message, ...], int]] = OrderedDict()
        self._bytes = 0

    def keep(self, response_id: str, messages: Sequence[Message]) -> None:
        """Remember the whole conversation, its last reply included."""
        size = len(msgspec.json.encode(messages))
        if size > self._most_bytes:
            return
        self._kept[response_id] = (tuple(messages), size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= dropped

    def messages(self, response_id: str) -> tuple[Message, ...]:
        """The conversation up to that response. Raises RequestError if it is not kept."""
        if response_id not in self._kept:
            raise RequestError(
                f"previous_response_id: {response_id[:100]!r} is not kept here; send the whole "
                "conversation as input",
                field="previous_response_id",
                code="previous_response_not_found",
            )
        self._kept.move_to_end(response_id)
        return self._kept[response_id][0]
