"""The commands of docs/api.md, run one after the other as a reader would, against `python -m local up`."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import pytest

from local.api import Api
from local.aws import ACCESS_KEY, REGION, SECRET_KEY
from local.processes import ROOT
from tests.support.up import PATIENCE_SECONDS, Running
from tests.support.watched import until

DOCUMENT = ROOT / "docs" / "api.md"
PLACEHOLDERS = ("https://abc123.execute-api.eu-central-1.amazonaws.com/v1", "eu-central-1")
CURL = """curl() { command curl --silent --show-error --write-out '\\n%{http_code}' "$@"; }"""
KEY = "btc-trades-1"


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


PREPARATION, *EXAMPLES = blocks()
COMMANDS = [command for block in EXAMPLES for command in re.split(r"^(?=curl )", block, flags=re.MULTILINE) if command]


@pytest.fixture(scope="module")
def up() -> Iterator[Mapping[str, Any]]:
    running = Running("--workers", "1")
    yield running.said
    running.end(signal.SIGINT)


@pytest.fixture(scope="module")
def names(up: Mapping[str, Any]) -> dict[str, str]:
    """What a reader would have put into the variables of the examples, as far as it is known by now."""
    (worker,) = Api(up["apiUrl"]).call("GET", "/workers").body["workers"]
    return {"WORKER": worker["workerId"]}


def run(up: Mapping[str, Any], names: Mapping[str, str], command: str) -> tuple[int, Any]:
    """Run a command after the document's own preparation; returns the status and the body."""
    prepared = PREPARATION.replace(PLACEHOLDERS[0], up["apiUrl"]).replace(PLACEHOLDERS[1], REGION)
    credentials = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    ran = subprocess.run(
        ["bash", "-c", f"{CURL}\n{prepared}\n{command}"],
        env={"PATH": os.environ["PATH"], **credentials, **names}, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    body, _, status = ran.stdout.rpartition("\n")
    return int(status), json.loads(body)


def test_the_document_has_an_example_of_every_route() -> None:
    routes = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    shown = "\n".join(COMMANDS)

    assert len(COMMANDS) >= sum(len(methods) for methods in routes.values())
    for path in routes:
        assert re.sub(r"\{id\}", "$", path).partition("$")[0] in shown


# In the order of the document, since each has the one before it to thank for its connection.
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.splitlines()[0][:80])
def test_an_example_is_answered_as_the_document_says(
    up: Mapping[str, Any], names: dict[str, str], command: str
) -> None:
    if "force-release" in command:
        # The document has deleted it by then: its owner lets go, and is gone itself.
        api = Api(up["apiUrl"])
        until(lambda: api.call("GET", f"/connections/{names['ID']}").body["owner"] is None, "not let go")
    # So few connections fill no page, so that there is no cursor to go on with.
    status, body = run(up, names, command.replace("&cursor=$CURSOR", ""))

    looks = "-X" not in command and "-d" not in command
    assert status == (HTTPStatus.OK if looks else HTTPStatus.ACCEPTED), body
    if KEY in command:
        names["ID"] = body["connectionId"]
        assert body["request"] == documented()["request"]
        assert body.keys() == documented().keys()


def documented() -> dict[str, Any]:
    """The answer that the document shows."""
    (text,) = re.findall(r"^answers `202`.*?```json\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    answer: dict[str, Any] = json.loads(text)
    return answer
