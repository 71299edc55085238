"""Requests and answers of the REST API, between API Gateway's events and plain values."""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from connections import identity
from connections.refusal import Refusal
from connections.spec import MAX_BODY_BYTES
from leases.rows import Item, readable

Json = dict[str, Any]
T = TypeVar("T")


class ApiError(Exception):
    """An answer that is not a success. Its message never repeats a value of the request.

    `connection` is the one that it is about, where the client cannot know its id from elsewhere.
    """

    def __init__(self, status: HTTPStatus, code: str, message: str, connection: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.connection = connection


def not_found(what: str) -> ApiError:
    """There is no such thing."""
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", f"there is no such {what}")


def conflict(code: str, message: str) -> ApiError:
    """The request is fine but does not go with the state of things."""
    return ApiError(HTTPStatus.CONFLICT, code, message)


def unavailable() -> ApiError:
    """The table did not answer, and nothing was changed. The same request may be sent again."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "the table does not answer; try again")


def outcome_unknown(connection: str | None) -> ApiError:
    """The table did not answer a write. The same request may be sent again, and then is made once."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "outcome_unknown",
        "the table does not answer, and the change may have been made; try again, or look",
        connection,
    )


def read(parse: Callable[[Item], T], item: Item) -> T:
    """What a row says. Raises `ApiError` for one that somebody has edited by hand, or that another version wrote."""
    rows, _ = readable(parse, (item,))
    if not rows:
        raise conflict("unreadable", "a row of this cannot be read by this version")
    return rows[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, as API Gateway has routed it."""

    route: str
    """Method and resource, as `GET /connections/{id}`."""
    id: str
    """The path parameter, or nothing."""
    query: Mapping[str, str]
    key: str | None
    """The Idempotency-Key."""
    body: bytes
    caller: str
    fresh_id: str
    """For a new connection. Chosen once, so that a request that is repeated makes no second one."""

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> "Request":
        """Read a proxy event. Raises `Refusal` or `ApiError` for a body or parameters that cannot be read."""
        principal = event["requestContext"].get("identity") or {}
        return cls(
            route=f"{event['httpMethod']} {event['resource']}",
            id=(event.get("pathParameters") or {}).get("id", ""),
            query=_once(event.get("multiValueQueryStringParameters") or {}, "the query"),
            key=_key(event),
            body=_body(event),
            caller=caller(principal),
            fresh_id=identity.random_id(),
        )


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    status: HTTPStatus
    body: Mapping[str, object]
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_event(self) -> Json:
        """The answer that API Gateway expects."""
        return {
            "statusCode": self.status.value,
            "headers": {"Content-Type": "application/json", "Cache-Control": "no-store", **self.headers},
            "body": json.dumps(self.body),
            "isBase64Encoded": False,
        }


def error_response(error: ApiError | Refusal) -> Response:
    """The one shape of all errors."""
    if isinstance(error, Refusal):
        where = {} if error.field is None else {"field": error.field}
        body = {"code": error.code, "message": error.message} | where
        return Response(HTTPStatus.BAD_REQUEST, {"error": body})
    headers = {"Retry-After": "1"} if error.status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    which = {} if error.connection is None else {"connectionId": error.connection}
    return Response(error.status, {"error": {"code": error.code, "message": str(error)} | which}, headers)


def caller(principal: Mapping[str, Any]) -> str:
    """Who asks: the principal without the name of its session, which differs from one run of a job to the next.

    `arn:aws:sts::1:assumed-role/Deploy/run-17` is the caller `arn:aws:sts::1:assumed-role/Deploy`.
    """
    arn = str(principal.get("userArn") or principal.get("accountId") or "anonymous")
    return arn.rpartition("/")[0] if ":assumed-role/" in arn else arn


def _once(parameters: Mapping[str, list[str]], where: str) -> dict[str, str]:
    for name, values in parameters.items():
        if len(values) != 1:
            raise Refusal("invalid_value", f"given more than once in {where}", name[:128])
    return {name: values[0] for name, values in parameters.items()}


def _key(event: Mapping[str, Any]) -> str | None:
    headers: Mapping[str, list[str]] = event.get("multiValueHeaders") or {}
    given = [value for name, values in headers.items() if name.lower() == "idempotency-key" for value in values]
    if len(given) > 1:
        raise Refusal("invalid_value", "given more than once", "Idempotency-Key")
    return given[0] if given else None


def _body(event: Mapping[str, Any]) -> bytes:
    text: str = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise Refusal("invalid_json", "the body is not base64, although it is marked so") from None
    elif "\ufffd" in text:
        raise Refusal("invalid_json", "the body is not UTF-8 (where U+FFFD itself is meant, write \\ufffd)")
    else:
        # A lone surrogate cannot have been sent as UTF-8; it becomes what the parser refuses.
        body = text.encode("utf-8", errors="surrogatepass")
    if len(body) > MAX_BODY_BYTES:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes"
        )
    return body
