"""The AWS clients of a worker, one per purpose, each with time-outs, attempts and connections for that purpose.

botocore waits 60 s to connect and 60 s to read by default and makes up to ten attempts: one call could outlive ten
leases. Where the protocol retries by itself (nearly everywhere) the SDK makes one attempt. A purpose has threads of its
own too, as many as connections, so that what waits in one never delays another.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from worker.output import LANES
from worker.transport import CONNECT_SHARE, WRITE_SHARE, fence

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sqs import SQSClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a client is for. Time-outs are seconds of one attempt."""

    name: str
    connect: float
    read: float
    threads: int
    """Calls at a time, and so threads and connections."""
    attempts: int = 1

    @property
    def timeout(self) -> float:
        """The longest that an attempt may take, in seconds."""
        return round(self.connect + self.read, 3)

    def executor(self) -> ThreadPoolExecutor:
        """Threads of its own for this purpose's blocking calls."""
        return ThreadPoolExecutor(self.threads, thread_name_prefix=self.name)


HEARTBEAT_PATIENCE = 1.2
"""Seconds after which a heartbeat without an answer is repeated. An answer that comes later still counts
(`leases.late`), so that a table which is slow, but does what it is asked, takes no session's right to emit for long."""

HEARTBEAT = Purpose(name="heartbeat", connect=0.4, read=4.0, threads=4)
"""A heartbeat per second, each attempt with a thread of its own for as long as its answer can be of use."""

JUDGE = Purpose(name="judge", connect=0.4, read=0.8, threads=4)
"""Reads of other sessions, which go stale within 2 P."""

LEASES = Purpose(name="leases", connect=0.5, read=4.0, threads=48)
"""Claims, status, checkpoints, sweeps, and reads of what is to run. Patient, and with many calls at a time, so that a
worker can be drained while every answer takes three seconds."""

REAPING = Purpose(name="reaping", connect=0.5, read=4.0, threads=4)
"""The supervisor's: declaring sessions dead, listing what they owned."""

ASSIGNMENTS = Purpose(name="assignments", connect=1.0, read=5.0, threads=1)
"""A long poll takes up to `worker.assignments.WAIT_SECONDS`."""

HINTS = Purpose(name="hints", connect=0.5, read=2.0, threads=8)
"""Sending and deleting queue messages."""

SECRETS = Purpose(name="secrets", connect=1.0, read=3.0, threads=8, attempts=2)
"""Secrets are read at every attempt to connect; nothing else retries a read."""


class Clients:
    """Makes the clients of one process from one SDK session. Making one takes tens of milliseconds: make each once.

    Clients may be used by any thread, but are made in one.
    """

    def __init__(self) -> None:
        # ECS and Lambda set AWS_REGION, which boto3 does not read.
        self._session = boto3.Session(region_name=os.environ.get("AWS_REGION"))

    def dynamodb(self, purpose: Purpose) -> "DynamoDBClient":
        """A client of the lease table."""
        return self._session.client("dynamodb", config=_config(purpose))

    def sqs(self, purpose: Purpose) -> "SQSClient":
        """A client of the assignment queue."""
        return self._session.client("sqs", config=_config(purpose))

    def secrets(self) -> "SecretsManagerClient":
        """A client of the secrets that requests refer to."""
        return self._session.client("secretsmanager", config=_config(SECRETS))

    def kinesis(self, drain: float) -> "KinesisClient":
        """A client of the output stream, whose every request lands within `drain` seconds or not at all."""
        client = self._session.client("kinesis", config=_config(_sink(drain)))
        fence(client, drain, LANES)
        return client

    def fifo(self, drain: float) -> "SQSClient":
        """A client of an output queue, whose every request lands within `drain` seconds or not at all."""
        client = self._session.client("sqs", config=_config(_sink(drain)))
        fence(client, drain, LANES)
        return client


def _sink(drain: float) -> Purpose:
    return Purpose(name="sink", connect=CONNECT_SHARE * drain, read=WRITE_SHARE * drain, threads=LANES)


def _config(purpose: Purpose) -> Config:
    return Config(
        connect_timeout=purpose.connect,
        read_timeout=purpose.read,
        max_pool_connections=purpose.threads,
        retries={"mode": "standard", "total_max_attempts": purpose.attempts},
        tcp_keepalive=True,
        # Requests are built in one place each, from validated values.
        parameter_validation=False,
    )
