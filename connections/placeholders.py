"""`${name}` in a request: where a secret or a cursor is put in at each attempt."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

PLACEHOLDER = re.compile(r"\$\{([A-Za-z][A-Za-z0-9_]{0,63})\}")


def names(texts: Iterable[str | None]) -> set[str]:
    """The names of all placeholders in texts."""
    return {name for text in texts if text is not None for name in PLACEHOLDER.findall(text)}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in; a name without a value stays as it is, since it may be no placeholder at all."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def fill_url(url: str, values: Mapping[str, str]) -> str:
    """Put values into the query of a URL, percent-encoded."""
    address, mark, query = url.partition("?")
    return address + mark + fill(query, {name: quote(value, safe="") for name, value in values.items()})
