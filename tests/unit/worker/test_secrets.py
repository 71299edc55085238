"""Secrets: read anew each time, shared by those who read at once, and never shown."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from moto import mock_aws

from worker.secrets import Secrets, SecretUnavailable, secrets_manager


async def test_values_are_read_anew_and_fields_are_taken_from_json() -> None:
    stored = {"plain": "p1", "json": '{"user": "u", "number": 7}'}
    with ThreadPoolExecutor(4) as executor:
        secrets = Secrets(stored.__getitem__, executor)
        assert await secrets.values({"a": "plain", "b": "json#user"}) == {"a": "p1", "b": "u"}
        stored["plain"] = "p2"
        assert await secrets.values({"a": "plain"}) == {"a": "p2"}
        assert await secrets.values({}) == {}


@pytest.mark.parametrize("ref", ["json#missing", "json#number", "plain#x", "list#x"])
async def test_a_field_that_is_not_there_is_an_error_that_shows_no_value(ref: str) -> None:
    stored = {"plain": "SENTINEL", "json": '{"number": 7, "other": "SENTINEL"}', "list": '["SENTINEL"]'}
    with ThreadPoolExecutor(1) as executor, pytest.raises(SecretUnavailable) as caught:
        await Secrets(stored.__getitem__, executor).values({"a": ref})
    assert "SENTINEL" not in repr(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_attempts_that_start_together_share_one_read() -> None:
    reads: list[str] = []

    def read(name: str) -> str:
        reads.append(name)
        return name

    with ThreadPoolExecutor(1) as executor:
        secrets = Secrets(read, executor)
        await asyncio.gather(*(secrets.values({"a": "s", "b": "s#"}) for _ in range(20)))
    assert len(reads) == 1


@mock_aws
def test_only_the_prefix_is_read_and_errors_name_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    client = boto3.client("secretsmanager", region_name="eu-central-1")
    client.create_secret(Name="fleet/a", SecretString="value")
    client.create_secret(Name="fleet/b", SecretBinary=b"\x00")
    client.create_secret(Name="other/c", SecretString="foreign")
    read = secrets_manager(client, "fleet/")
    assert read("fleet/a") == "value"
    for name, why in {"other/c": "outside of", "fleet/b": "is binary", "fleet/d": "ResourceNotFoundException"}.items():
        with pytest.raises(SecretUnavailable, match=why):
            read(name)
