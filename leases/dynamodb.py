"""The table in DynamoDB: renders the protocol's writes, and tells the three outcomes apart.

A condition that did not hold is a result (`Refused`, with the row as it is). Everything else that is not a plain
success (time-out, throttle, 5xx, a broken connection, an answer that cannot be read) proves nothing and raises
`Unknown`. No call here retries; how often the SDK does is the setting of the injected client.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from leases.conditions import (
    Absent,
    AllOf,
    AnyOf,
    Below,
    Condition,
    Equals,
    FewerThan,
    OneOf,
    Refused,
    Unknown,
    Write,
    Written,
)
from leases.ports import Page
from leases.rows import Item, Key, connection_key, connection_of, session_shard

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BATCH_GET_LIMIT = 100
"""Keys that one BatchGetItem takes (AWS: API_BatchGetItem)."""

INDEX_PAGE = 1000
"""Index entries in one answer: about 150 KB, so that no answer takes long to read."""

UNREADABLE = (ResponseParserError, ValueError, TypeError, LookupError, AttributeError)
"""What botocore, or who reads what it returns, raises over an answer that is none: a proxy's page, half a body, `null`.
It is raised far from here, in whatever touches the answer first, so that no narrower list would hold."""

T = TypeVar("T")


# Items


class _PlainDeserializer(TypeDeserializer):
    """Whole numbers as int, binary as bytes, string sets as frozenset: what `leases.rows.Item` promises."""

    def _deserialize_n(self, value: str) -> int:
        return int(value)

    def _deserialize_b(self, value: bytes) -> bytes:
        return value

    def _deserialize_ss(self, value: list[str]) -> frozenset[str]:
        return frozenset(value)


_serialize = TypeSerializer().serialize
_deserialize = _PlainDeserializer().deserialize


def to_dynamodb(item: Item) -> dict[str, Any]:
    """A plain item in DynamoDB's typed form. Raises `TypeError` for a float or another type that rows do not have."""
    return {name: _serialize(value) for name, value in item.items()}


def from_dynamodb(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A typed item as plain Python."""
    return {name: _deserialize(value) for name, value in attributes.items()}


# Rendering


@dataclass(slots=True)
class _Expressions:
    """Collects the placeholders of one request: attribute names may be reserved words, as `owner` and `next` are."""

    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def path(self, path: str) -> str:
        name, dot, inner = path.partition(".")
        return self._name(name) + (f".{self._name(inner)}" if dot else "")

    def value(self, value: Any) -> str:
        placeholder = f":{len(self.values)}"
        self.values[placeholder] = _serialize(value)
        return placeholder

    def condition(self, condition: Condition) -> str:
        match condition:
            case Equals(path, value):
                return f"{self.path(path)} = {self.value(value)}"
            case OneOf(path, values):
                return f"{self.path(path)} IN ({', '.join(map(self.value, values))})"
            case Below(path, value):
                return f"{self.path(path)} < {self.value(value)}"
            case Absent(path):
                return f"attribute_not_exists({self.path(path)})"
            case FewerThan(path, count):
                return f"size({self.path(path)}) < {self.value(count)}"
            case AllOf(parts):
                return " AND ".join(map(self._operand, parts))
            case AnyOf(parts):
                return " OR ".join(map(self._operand, parts))

    def update(self, write: Write) -> str:
        clauses = {
            "SET": [f"{self.path(path)} = {self.value(value)}" for path, value in write.set.items()],
            "REMOVE": [self.path(path) for path in write.remove],
            "ADD": [f"{self.path(path)} {self.value(elements)}" for path, elements in write.add.items()],
            "DELETE": [f"{self.path(path)} {self.value(elements)}" for path, elements in write.delete.items()],
        }
        return " ".join(f"{verb} {', '.join(actions)}" for verb, actions in clauses.items() if actions)

    def placeholders(self) -> dict[str, Any]:
        names = {placeholder: name for name, placeholder in self.names.items()}
        used = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": self.values}
        return {parameter: placeholders for parameter, placeholders in used.items() if placeholders}

    def _operand(self, condition: Condition) -> str:
        """A part of a compound condition, in parentheses only where they matter: DynamoDB refuses redundant ones."""
        while isinstance(condition, AllOf | AnyOf) and len(condition.parts) == 1:
            condition = condition.parts[0]
        rendered = self.condition(condition)
        return f"({rendered})" if isinstance(condition, AllOf | AnyOf) else rendered

    def _name(self, name: str) -> str:
        return self.names.setdefault(name, f"#{len(self.names)}")


def render(table: str, write: Write) -> dict[str, Any]:
    """The parameters of the `Update` that applies a write, for UpdateItem or as a part of TransactWriteItems."""
    expressions = _Expressions()
    update = expressions.update(write)
    condition = expressions.condition(write.condition)
    return {
        "TableName": table,
        "Key": to_dynamodb(write.key._asdict()),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        **({"UpdateExpression": update} if update else {}),
        **({"ConditionExpression": condition} if condition else {}),
        **expressions.placeholders(),
    }


# Outcomes


@contextmanager
def _unknown(action: str) -> Iterator[None]:
    """Turn whatever proves nothing into `Unknown`, with the error's code and nothing of the request in its message.

    Around the call and the reading of its answer, not around the making of the request: what fails there is a mistake.
    """
    try:
        yield
    except ClientError as error:
        raise Unknown(f"{action}: {_code(error)}") from error
    except (BotoCoreError, *UNREADABLE) as error:
        raise Unknown(f"{action}: {type(error).__name__}") from error


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "no code")


def _refused(reason: Mapping[str, Any]) -> Refused:
    item = reason.get("Item")
    return Refused(from_dynamodb(item) if item else None)


class Contended(Unknown):
    """Another transaction was at one of the rows, so this one was not applied."""


@dataclass(frozen=True, slots=True)
class Table:
    """The table, as blocking calls. Thread-safe, as its low-level client is. Every call may raise `Unknown`."""

    client: "DynamoDBClient"
    name: str
    owner_index: str
    """The KEYS_ONLY index of connection rows by owner."""

    def write(self, write: Write) -> Written | Refused:
        """Apply one conditional write."""
        request = render(self.name, write)
        with _unknown(write.name):
            try:
                answer = self.client.update_item(**request, ReturnValues="ALL_NEW")
            except ClientError as error:
                if _code(error) == "ConditionalCheckFailedException":
                    return _refused(error.response)
                raise
            if "Attributes" not in answer:
                raise Unknown(f"{write.name}: an answer without the row")
            return Written(from_dynamodb(answer["Attributes"]))

    def transact(self, writes: Sequence[Write]) -> Mapping[int, Refused]:
        """Apply writes of different rows, all or none. Returns which were refused, by position; empty: all are applied.

        Raises `Contended` where another transaction was at one of the rows.
        The SDK repeats a call under one idempotency token, so an applied transaction is not refused by its repetition.
        """
        parts = [{"Update": render(self.name, write)} for write in writes]
        with _unknown(writes[0].name):
            try:
                self.client.transact_write_items(TransactItems=parts)  # type: ignore[arg-type]
            except ClientError as error:
                reasons: Sequence[Mapping[str, Any]] = error.response.get("CancellationReasons", ())
                refused = {
                    position: _refused(reason)
                    for position, reason in enumerate(reasons)
                    if reason.get("Code") == "ConditionalCheckFailed"
                }
                if refused:
                    return refused
                if any(reason.get("Code") == "TransactionConflict" for reason in reasons):
                    raise Contended(f"{writes[0].name}: TransactionConflict") from error
                raise
        return {}

    def get(self, key: Key) -> Item | None:
        """Read one row, strongly consistent."""
        with _unknown("get"):
            answer = self.client.get_item(TableName=self.name, Key=to_dynamodb(key._asdict()), ConsistentRead=True)
            return from_dynamodb(answer["Item"]) if "Item" in answer else None

    def get_many(self, keys: Iterable[Key]) -> Mapping[Key, Item]:
        """Read rows, each strongly consistent; absent ones are left out. Any number of keys, repeated ones too."""
        rows: dict[Key, Item] = {}
        distinct = list(dict.fromkeys(keys))
        for first in range(0, len(distinct), BATCH_GET_LIMIT):
            wanted: Sequence[Any] = [to_dynamodb(key._asdict()) for key in distinct[first : first + BATCH_GET_LIMIT]]
            while wanted:
                with _unknown("get_many"):
                    answer = self.client.batch_get_item(
                        RequestItems={self.name: {"Keys": wanted, "ConsistentRead": True}}
                    )
                    for attributes in answer.get("Responses", {}).get(self.name, ()):
                        item = from_dynamodb(attributes)
                        rows[Key(item["pk"], item["sk"])] = item
                    unprocessed: Mapping[str, Any] = answer.get("UnprocessedKeys", {})
                    left = unprocessed.get(self.name, {}).get("Keys", ())
                if len(left) == len(wanted):
                    raise Unknown("get_many: UnprocessedKeys")
                wanted = left
        return rows

    def owned_by(self, owner: str, start: str | None = None, limit: int = INDEX_PAGE) -> Page[str]:
        """One page of the connection ids that the index lists under an owner. A hint: it may be stale or incomplete."""
        with _unknown("owned_by"):
            answer = self.client.query(
                TableName=self.name,
                IndexName=self.owner_index,
                Limit=limit,
                KeyConditionExpression="#owner = :owner",
                ExpressionAttributeNames={"#owner": "owner"},
                ExpressionAttributeValues={":owner": _serialize(owner)},
                **_from(None if start is None else connection_key(start)._asdict() | {"owner": owner}),
            )
            return _page(answer, lambda row: connection_of(row["pk"]), lambda key: connection_of(key["pk"]))

    def owners(self, start: str | None = None) -> Page[tuple[str, str]]:
        """One page of every (owner, connection id) in the index. A hint, as `owned_by` is."""
        behind = _from(_key(start, "owner", "pk", "sk"))
        with _unknown("owners"):
            answer = self.client.scan(
                TableName=self.name,
                IndexName=self.owner_index,
                **behind,
            )
            return _page(
                answer,
                lambda row: (row["owner"], connection_of(row["pk"])),
                lambda key: f"{key['owner']} {key['pk']} {key['sk']}",
            )

    def sessions(self, shard: int, start: str | None = None) -> Page[Item]:
        """One page of the session rows of a shard, eventually consistent."""
        with _unknown("sessions"):
            answer = self.client.query(
                TableName=self.name,
                KeyConditionExpression="pk = :pk",
                ExpressionAttributeValues={":pk": _serialize(session_shard(shard))},
                **_from(None if start is None else Key(session_shard(shard), start)._asdict()),
            )
            return _page(answer, lambda row: row, lambda key: key["sk"])

    def scan(self, where: Condition, start: str | None, limit: int) -> Page[Item]:
        """Those of the next `limit` rows of the table for which `where` holds."""
        expressions = _Expressions()
        filtered = expressions.condition(where)
        behind = _from(_key(start, "pk", "sk"))
        with _unknown("scan"):
            answer = self.client.scan(
                TableName=self.name,
                FilterExpression=filtered,
                Limit=limit,
                **expressions.placeholders(),
                **behind,
            )
            return _page(answer, lambda row: row, lambda key: f"{key['pk']} {key['sk']}")


def _from(key: Item | None) -> dict[str, Any]:
    return {} if key is None else {"ExclusiveStartKey": to_dynamodb(key)}


def _key(start: str | None, *names: str) -> Item | None:
    return None if start is None else dict(zip(names, start.split(" "), strict=True))


def _page(answer: Mapping[str, Any], read: Callable[[Item], T], cursor: Callable[[Item], str]) -> Page[T]:
    last = answer.get("LastEvaluatedKey")
    return Page(
        [read(from_dynamodb(attributes)) for attributes in answer["Items"]],
        cursor(from_dynamodb(last)) if last else None,
    )


@dataclass(frozen=True, slots=True)
class AsyncStore:
    """`leases.ports.Store`: the table's blocking calls in the threads of an executor, so that the loop never waits."""

    table: Table
    executor: Executor

    async def write(self, write: Write) -> Written | Refused:
        """Apply one conditional write."""
        return await self._run(self.table.write, write)

    async def get(self, key: Key) -> Item | None:
        """Read one row, strongly consistent."""
        return await self._run(self.table.get, key)

    async def get_many(self, keys: Sequence[Key]) -> Mapping[Key, Item]:
        """Read rows, each strongly consistent; absent ones are left out. Any number of keys."""
        return await self._run(self.table.get_many, keys)

    async def owned_by(self, owner: str, start: str | None) -> Page[str]:
        """One page of the connection ids that the index lists under an owner. A hint: it may be stale or incomplete."""
        return await self._run(self.table.owned_by, owner, start)

    async def sessions(self, shard: int, start: str | None) -> Page[Item]:
        """One page of the session rows of a shard, eventually consistent."""
        return await self._run(self.table.sessions, shard, start)

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, call, *arguments)
