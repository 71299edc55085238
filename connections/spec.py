"""The connection request: what a user may ask for, and every limit on it.

JSON names are camelCase; unknown ones are refused. Durations are seconds, sizes are bytes. `${name}` stands for a
secret that `secretRefs` declares, or for the cursor that `resume` sends: in header values, in the query of the URL and
in text frames. Every other `$` is just a `$`.
"""

import base64
import re
from typing import Annotated, Any, Literal, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from connections.placeholders import names
from connections.refusal import Refusal
from connections.strict_json import canonical
from connections.url_policy import MAX_URL_LENGTH

MAX_BODY_BYTES = 48 * 1024
MAX_STORED_BYTES = 51 * 1024
"""Stored, a request may be a little longer than it was sent; with its labels its row stays below 64 KiB."""
MAX_HEADERS = 50
MAX_HEADER_BYTES = 8 * 1024
"""Names and values together. Common servers refuse more."""
MAX_STEPS = 50
MAX_FRAME_BYTES = 32 * 1024
MAX_LABELS = 20
MAX_SCALAR_LENGTH = 1024
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_CURSOR_BYTES = 256
"""A cursor is part of the connection's row, which must stay below 1 KiB: a longer one is not stored."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110 section 7.6.1."""

FORBIDDEN_HEADERS = HOP_BY_HOP | {"content-length", "content-encoding", "expect", "host", "http2-settings"}
"""What belongs to the handshake itself, beside everything that starts with `sec-websocket-`."""

TCHARS = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
"""RFC 9110 section 5.6.2: header names, subprotocols (RFC 6455 section 4.1)."""


# Values


def _error(message: str, field: str = "") -> NoReturn:
    raise PydanticCustomError("invalid_value", "{message}", {"message": message, "field": field})


def _header_name(name: str) -> str:
    lower = name.lower()
    if lower in FORBIDDEN_HEADERS or lower.startswith("sec-websocket-"):
        _error("this header belongs to the handshake and cannot be set")
    return name


def _header_value(value: str) -> str:
    if value != value.strip(" \t"):
        _error("must not begin or end with a space")
    return value


def _headers(headers: dict[str, str]) -> dict[str, str]:
    if len({name.lower() for name in headers}) < len(headers):
        _error("has the same name twice")
    if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADER_BYTES:
        _error(f"larger than {MAX_HEADER_BYTES} bytes")
    return headers


def _text(text: str) -> str:
    _frame(text.encode())
    return text


def _base64(text: str) -> str:
    try:
        payload = base64.b64decode(text, validate=True)
    except ValueError:
        _error("not base64")
    _frame(payload)
    return text


def _frame(payload: bytes) -> None:
    if len(payload) > MAX_FRAME_BYTES:
        _error(f"longer than {MAX_FRAME_BYTES} bytes")


def _pointer(pointer: str) -> str:
    if re.search(r"~(?![01])", pointer):
        _error("not a JSON pointer")
    return pointer


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        _error("has the same value twice")
    return values


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | bool | int | float | None):
        _error("must be a text, a number, true or false")
    if isinstance(value, str) and len(value) > MAX_SCALAR_LENGTH:
        _error(f"longer than {MAX_SCALAR_LENGTH} characters")
    return value


def _cursor(value: Any) -> Any:
    if not isinstance(value, str | int | None) or isinstance(value, bool):
        _error("must be a text or an integer")
    if isinstance(value, str) and len(value.encode()) > MAX_CURSOR_BYTES:
        _error(f"longer than {MAX_CURSOR_BYTES} bytes")
    return value


def _as_frame(frame: Any) -> Any:
    return {"text": frame} if isinstance(frame, str) else frame


Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
HeaderName = Annotated[str, Field(max_length=128, pattern=TCHARS), AfterValidator(_header_name)]
HeaderValue = Annotated[
    str, Field(max_length=MAX_HEADER_BYTES, pattern=r"^[\t\x20-\x7e]*$"), AfterValidator(_header_value)
]
SecretRef = Annotated[str, Field(pattern=r"^[A-Za-z0-9/_+=.@-]{1,512}(#[^\x00-\x1f#]{1,128})?$")]
"""The name of a secret; with `#key`, that field of its JSON."""
Text = Annotated[str, Field(max_length=MAX_FRAME_BYTES), AfterValidator(_text)]
Base64 = Annotated[str, Field(max_length=MAX_FRAME_BYTES * 4 // 3 + 4), AfterValidator(_base64)]
JsonPointer = Annotated[str, Field(max_length=256, pattern=r"^(/[^\x00-\x1f]*)?$"), AfterValidator(_pointer)]
"""RFC 6901; the empty one points to the whole message."""
Scalar = Annotated[
    Any, AfterValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean", "null"], "maxLength": 1024})
]
Cursor = Annotated[
    Any, AfterValidator(_cursor), WithJsonSchema({"type": ["string", "integer", "null"], "maxLength": 256})
]
PlaceholderName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


class Model(BaseModel):
    """Strict, immutable, camelCase, and with no field that nobody knows."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


class Frame(Model):
    """One message to send: `text`, or `base64` for a binary one. A bare string is `text`."""

    text: Text | None = None
    base64: Base64 | None = None

    @model_validator(mode="after")
    def _one_payload(self) -> Self:
        if (self.text is None) == (self.base64 is None):
            _error("needs either text or base64")
        return self

    @property
    def binary(self) -> bytes | None:
        """The bytes of a binary frame."""
        return None if self.base64 is None else base64.b64decode(self.base64)


class WaitFor(Model):
    """A message to wait for: one that contains a text, or whose JSON has a value (this one, or any) at a pointer."""

    contains: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    pointer: JsonPointer | None = None
    equals: Scalar = None
    timeout_seconds: Annotated[Seconds, Field(le=60)] = 10.0

    @model_validator(mode="after")
    def _one_match(self) -> Self:
        if (self.contains is None) == (self.pointer is None):
            _error("needs either contains or pointer")
        if self.equals is not None and self.pointer is None:
            _error("equals needs a pointer")
        return self


class Step(Model):
    """One step after each open: wait for a message if asked to, then send a frame if there is one."""

    text: Text | None = None
    base64: Base64 | None = None
    wait_for: WaitFor | None = None

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.text is not None and self.base64 is not None:
            _error("needs either text or base64")
        if self.text is None and self.base64 is None and self.wait_for is None:
            _error("needs text, base64 or waitFor")
        return self

    @property
    def frame(self) -> Frame | None:
        """What to send."""
        return None if self.text is None and self.base64 is None else Frame(text=self.text, base64=self.base64)


class WsPing(Model):
    """WebSocket pings. Without a pong, or any other byte, within the time-out the connection is reopened."""

    interval_seconds: Annotated[Seconds, Field(ge=1, le=300)] = 20.0
    timeout_seconds: Annotated[Seconds, Field(ge=1, le=300)] = 20.0


class AppPing(Model):
    """A message that the upstream wants to see regularly."""

    payload: Annotated[Frame, BeforeValidator(_as_frame, json_schema_input_type=Text | Frame)]
    interval_seconds: Annotated[Seconds, Field(ge=1, le=3600)]


class Resume(Model):
    """Where in the stream to go on after a reconnect: a cursor, taken from the messages and sent back."""

    pointer: JsonPointer
    """Where the cursor is in each message."""
    send_as: Literal["query", "onOpen"]
    name: PlaceholderName
    """The query parameter, or the placeholder in onOpen frames."""
    rewind: Annotated[int, Field(ge=0)] = 0
    """What is taken off a numeric cursor, so that nothing is missed at the seam."""
    initial: Cursor = None
    """The cursor of the first open. Without one, a query parameter is left out."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.send_as == "onOpen" and self.initial is None:
            _error("sendAs onOpen needs initial")
        return self


class Retry(Model):
    """When to give up. Everything else is tried again, with full jitter."""

    max_attempts: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Failed attempts in a row. Without it, attempts never end."""
    cap_seconds: Annotated[Seconds, Field(ge=1, le=3600)] = 120.0
    """The longest back-off."""
    fatal_close_codes: Annotated[
        tuple[Annotated[int, Field(ge=1000, le=4999)], ...], Field(max_length=100), AfterValidator(_distinct)
    ] = ()
    fatal_http_statuses: Annotated[
        tuple[Annotated[int, Field(ge=300, le=599)], ...], Field(max_length=100), AfterValidator(_distinct)
    ] = (401, 403, 404, 410)


class Limits(Model):
    """What one connection may cost."""

    max_message_bytes: Annotated[int, Field(ge=1, le=MAX_MESSAGE_BYTES)] = 1024 * 1024
    """A larger message closes the connection with 1009."""
    compression: bool = False
    """Offer permessage-deflate. Costs memory for each connection."""


class ConnectionSpec(Model):
    """Everything about a connection but whether it should run."""

    url: Annotated[str, Field(min_length=1, max_length=MAX_URL_LENGTH)]
    headers: Annotated[dict[HeaderName, HeaderValue], Field(max_length=MAX_HEADERS), AfterValidator(_headers)] = {}
    secret_refs: Annotated[dict[PlaceholderName, SecretRef], Field(max_length=20)] = {}
    """Placeholder to secret. Read again at every attempt; the values are never stored, logged or shown."""
    subprotocols: Annotated[
        tuple[Annotated[str, Field(max_length=128, pattern=TCHARS)], ...],
        Field(max_length=20),
        AfterValidator(_distinct),
    ] = ()
    on_open: Annotated[
        tuple[Annotated[Step, BeforeValidator(_as_frame, json_schema_input_type=Text | Step)], ...],
        Field(max_length=MAX_STEPS),
    ] = ()
    ws_ping: WsPing | None = WsPing()
    """`null` sends none."""
    app_ping: AppPing | None = None
    stale_after_seconds: Annotated[Seconds, Field(ge=1)] | None = None
    """Without a message for this long the connection is reopened."""
    max_lifetime_seconds: Annotated[float, Field(ge=10, le=30 * 86_400)] | None = None
    """The connection is replaced before it gets this old."""
    overlap_seconds: Annotated[float, Field(ge=0, le=300)] = 5.0
    """How long before the end of its life its replacement is opened."""
    handover: Literal["make_before_break", "break_before_make"] = "make_before_break"
    resume: Resume | None = None
    retry: Retry = Retry()
    limits: Limits = Limits()
    group: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")] | None = None
    """Connections that share a connect rate and a Retry-After. Default: those to the same host."""
    labels: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?$")],
            Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")],
        ],
        Field(max_length=MAX_LABELS),
    ] = {}
    adapter: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    """The name of an adapter that is installed in the worker, for what this document cannot say."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_lifetime_seconds is not None and self.overlap_seconds >= self.max_lifetime_seconds:
            _error("must be less than maxLifetimeSeconds", "overlapSeconds")
        declared = set(self.secret_refs)
        address, _, query = self.url.partition("?")
        in_frames = names(step.text for step in self.on_open)
        in_ping = names((self.app_ping.payload.text,)) if self.app_ping else set()
        if declared & names((address,)):
            _error("a secret can only be in the query", "url")
        if declared - in_frames - in_ping - names((query, *self.headers.values())):
            _error("declares a name that is used nowhere as ${name}", "secretRefs")
        if self.resume is not None and self.resume.name in declared:
            _error("is declared in secretRefs too", "resume.name")
        if self.resume is not None and self.resume.send_as == "onOpen" and self.resume.name not in in_frames:
            _error("is used in no frame of onOpen as ${name}", "resume.name")
        return self

    def to_json(self) -> str:
        """The canonical text: equal requests have equal texts. What is at its default is left out."""
        return canonical(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises `Refusal` where a newer version of the application refuses it."""
        return validate(cls, text)


class ConnectionRequest(ConnectionSpec):
    """The body of POST /connections."""

    desired: Literal["RUNNING", "PAUSED"] = "RUNNING"


class ConnectionChange(ConnectionSpec):
    """The body of PATCH /connections/{id}, laid over the request: a field that is given replaces that field."""

    desired: Literal["RUNNING", "PAUSED"] | None = None
    """Pauses or resumes; without it, neither."""


def spec_of(document: ConnectionRequest | ConnectionChange) -> ConnectionSpec:
    """The part of a body that is stored as a generation of the connection's request."""
    return ConnectionSpec.model_validate({name: getattr(document, name) for name in ConnectionSpec.model_fields})


M = TypeVar("M", bound=Model)

CODES = {"extra_forbidden": "unknown_field", "missing": "missing_field"}


def validate(model: type[M], text: str) -> M:
    """Read a document that `strict_json` has parsed. Raises `Refusal`, which names the first field that is wrong."""
    try:
        return model.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    code = CODES.get(first["type"], "invalid_type" if first["type"].endswith("_type") else "invalid_value")
    message = "unknown field" if code == "unknown_field" else first["msg"]
    raise Refusal(code, message, _field(first["loc"]) or first.get("ctx", {}).get("field"))


def _field(path: tuple[int | str, ...]) -> str | None:
    """`onOpen[2].waitFor.contains`. A name that the user made up is shown, but not at any length."""
    field = ""
    for part in path:
        if isinstance(part, int):
            field += f"[{part}]"
        elif part != "[key]":
            field += ("." if field else "") + part[:128]
    return field or None
