"""The OpenAPI document, made from the models that judge the requests. `python -m lambdas.api.openapi` prints it."""

import json
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, TypeAdapter

from connections.identity import CONNECTION_ID
from connections.spec import ConnectionChange, ConnectionRequest
from connections.status import State
from lambdas.api import answers
from lambdas.api.connections import IDEMPOTENCY_KEY
from lambdas.api.release import ReleaseRequest

BODIES: tuple[type[BaseModel], ...] = (ConnectionRequest, ConnectionChange, ReleaseRequest)
ANSWERS: tuple[Any, ...] = (
    answers.Connection,
    answers.ConnectionPage,
    answers.Worker,
    answers.WorkerList,
    answers.Error,
)

Document = dict[str, Any]


def document() -> Document:
    """The document."""
    adapters: list[tuple[str, Any, TypeAdapter[Any]]] = [
        (model.__name__, "validation", TypeAdapter(model)) for model in (*BODIES, *ANSWERS)
    ]
    _, generated = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    schemas = generated["$defs"]
    _make_optional(schemas["ConnectionChange"])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "WebSocket fleet",
            "version": "1",
            "description": "Outbound WebSocket connections, each held by exactly one worker. See docs/api.md.",
        },
        "security": [{"sigv4": []}],
        "paths": PATHS,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "sigv4": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "AWS Signature Version 4 for the service execute-api.",
                    "x-amazon-apigateway-authtype": "awsSigv4",
                }
            },
        },
    }


def _make_optional(schema: Document) -> None:
    """A change is judged once it is laid over the request: by itself it may leave out anything."""
    del schema["required"]
    for field in schema["properties"].values():
        field.pop("default", None)


def _schema(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(name: str) -> Document:
    return {"application/json": {"schema": _schema(name)}}


def _operation(
    name: str,
    summary: str,
    success: tuple[HTTPStatus, str],
    *problems: HTTPStatus,
    body: str | None = None,
    body_required: bool = True,
    parameters: tuple[Document, ...] = (),
) -> Document:
    status, answer = success
    codes = (HTTPStatus.BAD_REQUEST, *problems, HTTPStatus.SERVICE_UNAVAILABLE)
    operation: Document = {
        "operationId": name,
        "summary": summary,
        "responses": {
            str(status.value): {"description": summary, "content": _content(answer)},
            **{str(code.value): {"description": "See `error.code`.", "content": _content("Error")} for code in codes},
        },
    }
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = {"required": body_required, "content": _content(body)}
    return operation


def _parameter(name: str, where: str, description: str, schema: Document) -> Document:
    return {"name": name, "in": where, "required": where == "path", "description": description, "schema": schema}


CONNECTION = _parameter("id", "path", "The connection.", {"type": "string", "pattern": f"^{CONNECTION_ID.pattern}$"})
WORKER = _parameter("id", "path", "The worker process.", {"type": "string"})
KEY = _parameter(
    "Idempotency-Key",
    "header",
    "The same caller, key and request give the same connection, however often they come.",
    {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY.pattern}$"},
)
FILTERS = (
    _parameter("status", "query", "The observed state.", {"type": "string", "enum": list(State)}),
    _parameter("owner", "query", "The worker process that owns the connection.", {"type": "string"}),
    _parameter("label", "query", "A label, as `name=value`.", {"type": "string"}),
    _parameter("cursor", "query", "Where the last page ended.", {"type": "string"}),
)

OK, ACCEPTED = HTTPStatus.OK, HTTPStatus.ACCEPTED
NOT_FOUND, CONFLICT, TOO_LARGE = HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE

PATHS: Mapping[str, Mapping[str, Document]] = {
    "/connections": {
        "post": _operation(
            "createConnection",
            "Request a connection.",
            (ACCEPTED, "Connection"),
            CONFLICT,
            TOO_LARGE,
            body="ConnectionRequest",
            parameters=(KEY,),
        ),
        "get": _operation("listConnections", "List connections.", (OK, "ConnectionPage"), parameters=FILTERS),
    },
    "/connections/{id}": {
        "get": _operation(
            "getConnection", "Show a connection.", (OK, "Connection"), NOT_FOUND, parameters=(CONNECTION,)
        ),
        "patch": _operation(
            "changeConnection",
            "Pause, resume or change a connection.",
            (ACCEPTED, "Connection"),
            NOT_FOUND,
            CONFLICT,
            TOO_LARGE,
            body="ConnectionChange",
            parameters=(CONNECTION,),
        ),
        "delete": _operation(
            "stopConnection",
            "Stop a connection for good.",
            (ACCEPTED, "Connection"),
            NOT_FOUND,
            CONFLICT,
            parameters=(CONNECTION,),
        ),
    },
    "/connections/{id}/force-release": {
        "post": _operation(
            "forceRelease",
            "Take a connection from an owner that is dead.",
            (ACCEPTED, "Connection"),
            NOT_FOUND,
            CONFLICT,
            TOO_LARGE,
            body="ReleaseRequest",
            body_required=False,
            parameters=(CONNECTION,),
        )
    },
    "/workers": {"get": _operation("listWorkers", "List the worker processes.", (OK, "WorkerList"))},
    "/workers/{id}/drain": {
        "post": _operation(
            "drainWorker",
            "Have a worker process hand over all that it holds.",
            (ACCEPTED, "Worker"),
            NOT_FOUND,
            CONFLICT,
            parameters=(WORKER,),
        )
    },
}


def text() -> str:
    """The document as it is checked in."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
