"""The API's Lambda function: one line per route. API Gateway has authenticated the caller and chosen the route."""

import os
import time
from collections.abc import Callable, Mapping, Set
from http import HTTPStatus
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.utilities.typing import LambdaContext

from connections.refusal import Refusal
from connections.url_policy import UrlPolicy
from lambdas import clients
from lambdas.api import listing, workers
from lambdas.api.connections import Connections, connection_id
from lambdas.api.http import (
    ApiError,
    Json,
    Request,
    Response,
    error_response,
    not_found,
    outcome_unknown,
    unavailable,
)
from lambdas.api.notify import Notifier
from lambdas.api.patience import OutcomeUnknown, Patience
from lambdas.api.release import Clock, Releases
from lambdas.metering import count, emitted
from leases.conditions import Unknown
from telemetry.logs import Field
from telemetry.metrics import CONNECTIONS_REQUESTED, ENQUEUE_FAILURES, REQUESTS_REFUSED

logger = Logger()
metrics = Metrics()
table = clients.table(attempts=1)
connections = Connections(
    table=table,
    notifier=Notifier(table, clients.hints(), logger, lambda: count(metrics, ENQUEUE_FAILURES)),
    policy=UrlPolicy.parse(os.environ["ALLOWED_HOSTS"]),
    secret_prefix=os.environ["SECRET_PREFIX"],
    now=time.time,
)
releases = Releases(connections, Clock())
patience = Patience()


def create(request: Request) -> Response:
    """POST /connections"""
    connection = connection_id(request.caller, request.key, request.fresh_id)
    view = connections.create(request.body, connection)
    count(metrics, CONNECTIONS_REQUESTED)
    return Response(HTTPStatus.ACCEPTED, view.answer(), {"Location": f"./connections/{view.row.connection}"})


def accepted(body: Mapping[str, object]) -> Response:
    """The answer to a change, which is made by the time that the observed state shows it."""
    return Response(HTTPStatus.ACCEPTED, body)


def ok(body: Mapping[str, object]) -> Response:
    """The answer to a question."""
    return Response(HTTPStatus.OK, body)


ROUTES: Mapping[str, Callable[[Request], Response]] = {
    "POST /connections": create,
    "GET /connections": lambda request: ok(listing.page(table, request.query)),
    "GET /connections/{id}": lambda request: ok(connections.look(request.id).answer()),
    "PATCH /connections/{id}": lambda request: accepted(connections.change(request.id, request.body).answer()),
    "DELETE /connections/{id}": lambda request: accepted(connections.stop(request.id).answer()),
    "POST /connections/{id}/force-release": lambda request: accepted(releases.force(request.id, request.body).answer()),
    "GET /workers": lambda _: ok(workers.workers(table)),
    "POST /workers/{id}/drain": lambda request: accepted(workers.drain(table, request.id)),
}

PARAMETERS: Mapping[str, Set[str]] = {"GET /connections": listing.PARAMETERS}
"""Of the query, by route."""


def handler(event: Mapping[str, Any], _: LambdaContext) -> Json:
    """Answer one request."""
    with emitted(metrics):
        return answer(event).to_event()


def answer(event: Mapping[str, Any]) -> Response:
    """The answer to a request, refusals and outages included."""
    try:
        request = Request.from_event(event)
        route = ROUTES.get(request.route)
        if route is None:
            raise not_found("route")
        for name in request.query.keys() - PARAMETERS.get(request.route, frozenset()):
            raise Refusal("unknown_field", "unknown parameter", name[:128])
        return patience.answered(lambda: route(request))
    except (Refusal, ApiError) as refused:
        count(metrics, REQUESTS_REFUSED)
        return error_response(refused)
    except OutcomeUnknown as unknown:
        logger.warning(
            "no answer to a write; the client is asked to try again",
            extra={Field.CONNECTION: unknown.connection, Field.REASON: str(unknown)},
        )
        return error_response(outcome_unknown(unknown.connection))
    except Unknown as unknown:
        logger.warning("no answer from the table; the client is asked to try again", extra={Field.REASON: str(unknown)})
        return error_response(unavailable())
