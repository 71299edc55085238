"""Reads the output stream: every shard, from its beginning, in order."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botocore.config import Config

from local.aws import Aws

POLL_SECONDS = 0.25
"""Kinesis allows five reads a second and shard (Kinesis developer guide, "Quotas and limits")."""

Record = dict[str, Any]


def records(aws: Aws, stream: str) -> Iterator[list[Record]]:
    """Records as they come, those of one connection in their order. A poll that finds nothing gives an empty list.

    An entry of the stream holds records of one connection, as JSON lines.
    """
    config = Config(connect_timeout=2, read_timeout=30)
    kinesis = aws.session.client("kinesis", endpoint_url=aws.endpoint, config=config)
    shards = kinesis.list_shards(StreamName=stream)["Shards"]
    iterators = {
        shard["ShardId"]: kinesis.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        for shard in shards
    }
    while True:
        found: list[Record] = []
        for shard_id, iterator in iterators.items():
            answer = kinesis.get_records(ShardIterator=iterator, Limit=10_000)
            iterators[shard_id] = answer["NextShardIterator"]
            for entry in answer["Records"]:
                found.extend(json.loads(line) for line in entry["Data"].splitlines())
        yield found
        if not found:
            time.sleep(POLL_SECONDS)


def lines(file: Path) -> Iterator[list[Record]]:
    """Records as worker processes append them to a file that they share."""
    file.touch()
    with file.open() as text:
        rest = ""
        while True:
            *whole, rest = (rest + text.read()).split("\n")
            yield [json.loads(line) for line in whole]
            if not whole:
                time.sleep(POLL_SECONDS)


def follow(endpoint: str, stream: str) -> None:
    """Print records, one JSON object a line, until interrupted."""
    for batch in records(Aws(endpoint), stream):
        for record in batch:
            sys.stdout.write(f"{json.dumps(record)}\n")
        sys.stdout.flush()
