import re

import pytest

from sidecar.lsp.jsonrpc import Notification, Request, Response, RpcError, parse


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}', Request(1, "m", {"a": 1})),
        (b'{"jsonrpc":"2.0","id":"x","method":"m"}', Request("x", "m", None)),
        (b'{"jsonrpc":"2.0","method":"m","params":[1]}', Notification("m", [1])),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', Response(1)),
        (b'{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"m"}}', Response(3, error="m")),
        (b'{"jsonrpc":"2.0","id":null,"error":{"message":"m"}}', Response(None, error="m")),
        ('{"jsonrpc":"2.0","method":"é😀"}'.encode(), Notification("é😀", None)),
    ],
)
def test_messages_are_told_apart(body, expected):
    assert parse(body) == expected


@pytest.mark.parametrize(
    ("body", "code", "request_id", "message"),
    [
        (b"", -32700, None, "not JSON"),
        (b"{", -32700, None, "not JSON"),
        (b"NaN", -32700, None, "not JSON"),
        (b'{"a":"\xff"}', -32700, None, "not JSON"),
        (b"[" * 100_000, -32700, None, "nested too deeply"),
        (b'{"a":' * 100_000, -32700, None, "nested too deeply"),
        (b'{"x":"\\ud800",', -32700, None, "not JSON"),
        (b'"\\ud800' + b"[" * 100_000, -32700, None, "not JSON"),
        (b'["\\ud800",' + b"[" * 100_000, -32700, None, "not JSON"),
        (b'["\\ud800",NaN]', -32700, None, "NaN"),
        (b"5", -32600, None, "must be an object, got a number"),
        (b"null", -32600, None, "got null"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', -32600, None, "no batches"),
        (b'{"id":7,"method":"m"}', -32600, 7, 'jsonrpc must be "2.0"'),
        (b'{"jsonrpc":"1.0","id":7,"method":"m"}', -32600, 7, 'jsonrpc must be "2.0"'),
        (b'{"jsonrpc":"2.0","id":7}', -32600, 7, "method is missing"),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, 7, "method must be a string"),
        (b'{"jsonrpc":"2.0","id":null,"method":"m"}', -32600, None, "id must be"),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"m"}', -32600, None, "id must be"),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"}', -32600, None, "id must be"),
        (b'{"jsonrpc":"2.0","id":[],"method":"m"}', -32600, None, "got an array"),
    ],
)
def test_what_is_no_message_is_named(body, code, request_id, message):
    with pytest.raises(RpcError, match=re.escape(message)) as raised:
        parse(body)
    assert (raised.value.code, raised.value.request_id) == (code, request_id)


def test_half_a_surrogate_pair_costs_one_character_and_not_the_change():
    message = parse(b'{"jsonrpc":"2.0","method":"m","params":{"t":["a\\ud83d b \\ud83d\\ude00"]}}')
    assert message.params == {"t": ["a\ufffd b 😀"]}
