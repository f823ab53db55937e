"""`GET /openapi.json`: what this door takes and answers, made from the types that do it."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from sidecar.http.conditions import tightened
from sidecar.http.errors import json_response
from sidecar.http.schema.chat_request import ChatRequest
from sidecar.http.schema.chat_response import ChatCompletion
from sidecar.http.schema.completions_request import CompletionsRequest
from sidecar.http.schema.completions_response import TextCompletion
from sidecar.http.schema.error import ErrorBody
from sidecar.http.schema.infill import (
    Detokenized,
    DetokenizeRequest,
    Infill,
    InfillRequest,
    Props,
    Tokenized,
    TokenizeRequest,
)
from sidecar.http.schema.messages_request import CountTokensRequest, MessagesRequest
from sidecar.http.schema.messages_response import Message, MessageErrorBody, TokenCount
from sidecar.http.schema.model import Model, ModelList
from sidecar.http.schema.responses_request import ResponsesRequest
from sidecar.http.schema.responses_response import Response


class Operation(Struct, frozen=True, kw_only=True):
    """takes: the body of a POST; None for a GET. answers: what the body of a 200 may be; empty for
    what no schema describes, which is of the type `media`. streams: also as server-sent events.
    refuses: what the body of an error may be."""

    path: str
    summary: str
    takes: Any = None
    answers: tuple[Any, ...] = ()
    streams: bool = False
    media: str = "application/json"
    refuses: tuple[type, ...] = (ErrorBody,)


OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        summary="A chat turn, as OpenAI has it",
        takes=ChatRequest,
        answers=(ChatCompletion,),
        streams=True,
    ),
    Operation(
        path="/v1/completions",
        summary="Text to continue, or a gap to fill",
        takes=CompletionsRequest,
        answers=(TextCompletion,),
        streams=True,
    ),
    Operation(
        path="/v1/responses",
        summary="A response, as OpenAI has it",
        takes=ResponsesRequest,
        answers=(Response,),
        streams=True,
    ),
    Operation(
        path="/v1/messages",
        summary="A message, as Anthropic has it",
        takes=MessagesRequest,
        answers=(Message,),
        streams=True,
        refuses=(MessageErrorBody, ErrorBody),
    ),
    Operation(
        path="/v1/messages/count_tokens",
        summary="How long a prompt is",
        takes=CountTokensRequest,
        answers=(TokenCount,),
        refuses=(MessageErrorBody, ErrorBody),
    ),
    # With response_fields the answer is an object of those, with n_cmpl a list.
    Operation(
        path="/infill",
        summary="The text at a cursor, as llama.cpp has it",
        takes=InfillRequest,
        # With `response_fields` an answer has any of the fields, under flat names.
        answers=(Infill, list[Infill], dict[str, Any], list[dict[str, Any]]),
    ),
    Operation(
        path="/tokenize", summary="Text to token ids", takes=TokenizeRequest, answers=(Tokenized,)
    ),
    Operation(
        path="/detokenize",
        summary="Token ids to text",
        takes=DetokenizeRequest,
        answers=(Detokenized,),
    ),
    Operation(path="/v1/models", summary="The model that is served", answers=(ModelList,)),
    Operation(path="/v1/models/{id}", summary="One model", answers=(Model,)),
    Operation(path="/props", summary="The model, as llama.cpp describes it", answers=(Props,)),
    Operation(path="/health", summary="Whether the model answers, and the whole status"),
    Operation(path="/metrics", summary="What Prometheus scrapes", media="text/plain"),
)


async def openapi(_request: Request) -> HttpResponse:
    """The document, in OpenAPI 3.1."""
    return json_response(document())


@functools.cache
def document() -> dict[str, Any]:
    """The document as plain data."""
    types = [
        one for op in OPERATIONS for one in (op.takes, *op.answers, *op.refuses) if one is not None
    ]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = {repr(one): schema for one, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        method = "get" if operation.takes is None else "post"
        paths[operation.path] = {method: _described(operation, by_type)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pillion", "version": importlib.metadata.version("pillion")},
        "paths": paths,
        "components": {"schemas": tightened(components)},
    }


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    answers = [schemas[repr(one)] for one in operation.answers]
    answered = {"schema": {"anyOf": answers} if len(answers) > 1 else answers[0]} if answers else {}
    content: dict[str, Any] = {operation.media: answered}
    if operation.streams:
        content["text/event-stream"] = {}
    refusals = [schemas[repr(one)] for one in operation.refuses]
    # What is not ready says in /health what is going on.
    refused = {"application/json": {} if operation.path == "/health" else {"anyOf": refusals}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "the answer", "content": content},
            "default": {"description": "an error", "content": refused},
        },
    }
    if operation.takes is not None:
        taken = {"application/json": {"schema": schemas[repr(operation.takes)]}}
        described["requestBody"] = {"required": True, "content": taken}
    if "{id}" in operation.path:
        described["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return described
