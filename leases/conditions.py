"""Conditional writes as values.

The protocol says what it wants written and under which condition; `leases.dynamodb` renders that for DynamoDB, and
the simulation evaluates the very same values, so that what is proven is what is sent.
A path is an attribute name, or `name.field` for a field of a map attribute.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leases.rows import Key


@dataclass(frozen=True, slots=True)
class Equals:
    """The attribute is there and has this value."""

    path: str
    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """The attribute is there and has one of these values."""

    path: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Below:
    """The attribute is there and is a smaller number."""

    path: str
    value: int


@dataclass(frozen=True, slots=True)
class Absent:
    """The attribute is not there (on `pk`: no such row)."""

    path: str


@dataclass(frozen=True, slots=True)
class FewerThan:
    """The attribute is a set, list or map with fewer elements than this."""

    path: str
    count: int


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part holds."""

    parts: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple["Condition", ...]


Condition = Equals | OneOf | Below | Absent | FewerThan | AllOf | AnyOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One conditional write of one row. All or nothing; an absent row is created if the condition allows it."""

    name: str
    """Which write of the protocol it is, for logs and metrics."""
    key: Key
    condition: Condition
    set: Mapping[str, Any] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    add: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Elements to add to string sets; an absent set is created."""
    delete: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Elements to take out of string sets; an empty set goes away."""


@dataclass(frozen=True, slots=True)
class Written:
    """The write was applied; `image` is the row after it."""

    image: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The condition did not hold; `image` is the row as it is, or None where there is none."""

    image: Mapping[str, Any] | None


class Unknown(Exception):
    """No answer, or one that proves nothing (time-out, throttle, 5xx). A write may have been applied, or may yet be."""
