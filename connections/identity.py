"""Connection ids: short, opaque, and for a request with an Idempotency-Key always the same."""

import hashlib
import re
import secrets
from base64 import b32encode

CONNECTION_ID = re.compile(r"[a-z2-7]{26}")


def random_id() -> str:
    """The id of a request that need not be recognised again."""
    return _spell(secrets.token_bytes(16))


def derived_id(caller: str, key: str) -> str:
    """The id that follows from who asks and the Idempotency-Key: a retry finds the row of the first attempt."""
    return _spell(hashlib.sha256(f"{len(caller)}:{caller}{key}".encode()).digest()[:16])


def is_connection_id(text: str) -> bool:
    """Whether a text could be an id; others are not worth a look into the table."""
    return CONNECTION_ID.fullmatch(text) is not None


def _spell(bits: bytes) -> str:
    return b32encode(bits).decode().rstrip("=").lower()
