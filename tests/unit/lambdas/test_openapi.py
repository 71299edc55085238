"""The OpenAPI document is current, and whatever is sent is answered as it says."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lambdas.api.answers import Close, Observed, Problem
from lambdas.api.openapi import ANSWERS, PATHS, document, text
from leases.dynamodb import Table
from leases.rows import SessionRow
from tests.unit.lambdas.conftest import request

ROOT = Path(__file__).parents[3]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_the_document_that_is_checked_in_is_current() -> None:
    """If not: `python -m lambdas.api.openapi > docs/openapi.json`."""
    assert (ROOT / "docs" / "openapi.json").read_text() == text()


def test_the_document_has_every_route_of_the_handler(load: Callable[[str], ModuleType]) -> None:
    described = {f"{method.upper()} {path}" for path, methods in PATHS.items() for method in methods}
    assert described == set(load("lambdas.api.handler").ROUTES)


def test_every_text_and_list_of_a_request_has_a_limit() -> None:
    limits = {"maxLength", "maxItems", "pattern", "enum"}
    schemas = document()["components"]["schemas"]
    answers = {model.__name__ for model in (*ANSWERS, Problem, Observed, Close)}
    for name in schemas.keys() - answers:
        for field, details in schemas[name]["properties"].items():
            for part in (details, *details.get("anyOf", ())):
                assert part.get("type") not in ("string", "array") or limits & set(part), (name, field)


def rejected(context: Any, response: Any, case: Any) -> Any:
    """What the document forbids is refused: for what it is, or because it is too large in the first place."""
    return None if response.status_code == 413 else negative_data_rejection(context, response, case)


class Gateway:
    """What API Gateway does: finds the route, and answers by itself where there is none. It knows all callers."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def __call__(self, environ: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
        if path == "/openapi.json":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(document() | {"security": []}).encode()]
        for resource in PATHS:
            found = re.fullmatch(resource.replace("{id}", "([^/]+)"), path)
            if found and environ["REQUEST_METHOD"].lower() in PATHS[resource]:
                headers = {
                    name.removeprefix("HTTP_").replace("_", "-").title(): value
                    for name, value in environ.items()
                    if name.startswith("HTTP_")
                }
                body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                event = request(
                    environ["REQUEST_METHOD"],
                    resource,
                    body.decode("utf-8", "replace"),
                    connection=found[1] if found.groups() else None,
                    headers=headers,
                )
                query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True, errors="replace")
                answer = self.module.handler(event | {"multiValueQueryStringParameters": query}, None)
                start(f"{answer['statusCode']} X", list(answer["headers"].items()))
                return [answer["body"].encode()]
        start("404 Not Found", [("Content-Type", "application/json")])
        return [b'{"error":{"code":"not_signed_or_no_such_route","message":"Missing Authentication Token"}}']


@pytest.fixture
def described(load: Callable[[str], ModuleType], table: Table, worker: Callable[..., SessionRow]) -> Any:
    worker("s1")
    return schemathesis.openapi.from_wsgi("/openapi.json", Gateway(load("lambdas.api.handler")))


@pytest.mark.parametrize(("path", "method"), [(path, method) for path in PATHS for method in PATHS[path]])
def test_answers_are_as_described_whatever_is_sent(described: Any, path: str, method: str) -> None:
    operation = described[path][method]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def allowed(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def forbidden(case: Any) -> None:
        case.call_and_validate(checks=[*CHECKS, rejected])

    allowed()
    if operation.body or operation.query or operation.headers:
        forbidden()


def test_full_answers_fit_the_document(
    load: Callable[[str], ModuleType], table: Table, worker: Callable[..., SessionRow]
) -> None:
    """Fuzzing would hardly reach them."""
    worker("s1")
    module = load("lambdas.api.handler")
    components = document()["components"]
    body = {"url": "wss://a.example/", "labels": {"a": "b"}, "staleAfterSeconds": 60}
    for name, answer in (
        ("Connection", module.handler(request("POST", "/connections", body), None)),
        ("ConnectionPage", module.handler(request("GET", "/connections"), None)),
        ("WorkerList", module.handler(request("GET", "/workers"), None)),
        ("Worker", module.handler(request("POST", "/workers/{id}/drain", connection="s1"), None)),
        ("Error", module.handler(request("GET", "/connections/{id}", connection="x"), None)),
    ):
        wanted = {"$ref": f"#/components/schemas/{name}", "components": components}
        jsonschema_rs.validate(wanted, json.loads(answer["body"]))
