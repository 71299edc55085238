"""The values behind `secretRefs`: read from AWS Secrets Manager at every attempt, never stored.

Those of an attempt stay in memory as long as its WebSocket, so that what its server says is told without them
(`worker.redaction`).
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import orjson
from botocore.exceptions import BotoCoreError, ClientError

from leases.dynamodb import UNREADABLE

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class SecretUnavailable(Exception):
    """A secret could not be read. The message names it, and never holds a value."""


class Secrets:
    """Reads secrets without blocking the loop. Attempts that start together share one read."""

    def __init__(self, read: Callable[[str], str], executor: Executor) -> None:
        """`read` fetches one secret by name; it may block, and raises `SecretUnavailable`."""
        self._read = read
        self._executor = executor
        self._reads: dict[str, asyncio.Future[str]] = {}

    async def values(self, refs: Mapping[str, str]) -> dict[str, str]:
        """Read what `refs` (placeholder to `secret` or `secret#key`) refer to, as it is now.

        Raises `SecretUnavailable`.
        """
        names = sorted({ref.partition("#")[0] for ref in refs.values()})
        read = dict(zip(names, await asyncio.gather(*map(self._value, names)), strict=True))
        return {placeholder: _part(ref, read[ref.partition("#")[0]]) for placeholder, ref in refs.items()}

    async def _value(self, name: str) -> str:
        under_way = self._reads.get(name)
        if under_way is None:
            loop = asyncio.get_running_loop()
            under_way = self._reads[name] = loop.run_in_executor(self._executor, self._read, name)
            under_way.add_done_callback(lambda _: self._reads.pop(name, None))
        # One attempt that is given up must not take the read away from the others.
        return await asyncio.shield(under_way)


def _part(ref: str, value: str) -> str:
    name, _, key = ref.partition("#")
    if not key:
        return value
    try:
        part = orjson.loads(value)[key]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        # Not chained: the decoder's error carries the whole document.
        raise SecretUnavailable(f"secret {name!r} has no field {key!r}") from None
    if not isinstance(part, str):
        raise SecretUnavailable(f"field {key!r} of secret {name!r} is not a string")
    return part


def secrets_manager(client: "SecretsManagerClient", prefix: str) -> Callable[[str], str]:
    """A reader for `Secrets` on top of AWS Secrets Manager, for names that begin with `prefix` and no others."""

    def read(name: str) -> str:
        if not name.startswith(prefix):
            raise SecretUnavailable(f"secret {name!r} is outside of {prefix!r}")
        try:
            answer = client.get_secret_value(SecretId=name)
        except ClientError as error:
            raise SecretUnavailable(
                f"secret {name!r}: {error.response.get('Error', {}).get('Code', 'no code')}"
            ) from None
        except (BotoCoreError, *UNREADABLE) as error:
            raise SecretUnavailable(f"secret {name!r}: {type(error).__name__}") from None
        if "SecretString" not in answer:
            raise SecretUnavailable(f"secret {name!r} is binary")
        return answer["SecretString"]

    return read
