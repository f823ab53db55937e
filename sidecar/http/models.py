"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine import ModelInfo, NotReady, RequestError
from sidecar.http.errors import json_response
from sidecar.http.schema.model import Model, ModelList
from sidecar.services import Services


def served_model(services: Services, name: str | None = None) -> ModelInfo:
    """The loaded model. Raises NotReady while there is none, and RequestError
    (``model_not_found``) when `name` is given and is none of its names."""
    status = services.engine.status()
    if status.state != "ready" or status.model is None:
        raise NotReady(f"the model is {status.state}: {status.detail or 'no detail'}")
    names = _names(status.model, services)
    if name is not None and name not in names:
        raise RequestError(
            f"the model {name[:200]!r} is not served here; served: {', '.join(names)}",
            field="model",
            code="model_not_found",
        )
    return status.model


def _names(model: ModelInfo, services: Services) -> list[str]:
    """What the model answers to: its id, the last part of it, the name it was configured by, and
    ``default`` for clients that must send something."""
    names = [model.id, model.id.rpartition("/")[2], services.config.engine.model, "default"]
    return list(dict.fromkeys(names))


async def list_models(_request: Request, services: Services) -> Response:
    model = served_model(services)
    return json_response(ModelList(data=(_model(model, services),)))


async def retrieve_model(request: Request, services: Services) -> Response:
    model = served_model(services, request.path_params["id"])
    return json_response(_model(model, services))


def _model(model: ModelInfo, services: Services) -> Model:
    return Model(
        id=model.id,
        created=int(services.started),
        context_length=model.context,
        max_model_len=model.context,
        family=model.family,
        quantization=model.quantization,
        parameters=model.parameters,
        fingerprint=model.fingerprint,
    )
