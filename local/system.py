"""The whole system: emulator, deployed stacks, worker tasks."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from leases.rows import SESSION_SHARDS, SessionState, session_shard
from local import assembly, emulator
from local.aws import Aws
from local.deploy import deploy
from local.metadata import MetadataServer
from local.processes import Processes
from local.settings import configured
from local.tasks import Task, TaskDefinition, Tasks

READY_SECONDS = 60.0
STAGE_PATH = "_user_request_"


class NotReadyError(RuntimeError):
    """A worker task ended, or opened no session in time. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """The deployed stacks, without workers."""

    aws: Aws
    outputs: Mapping[str, str]

    @property
    def api_url(self) -> str:
        """The API by its path form, since no resolver knows the host names that the emulator makes up.

        Ends without a slash.
        """
        host, _, stage = self.outputs["ApiUrl"].removeprefix("https://").strip("/").partition("/")
        return f"{self.aws.endpoint}/restapis/{host.partition('.')[0]}/{stage}/{STAGE_PATH}"

    @property
    def names(self) -> dict[str, str]:
        """What a client needs to know."""
        return {
            "apiUrl": self.api_url,
            "endpointUrl": self.aws.endpoint,
            "streamName": self.outputs["StreamName"],
            "queueUrl": self.outputs["QueueUrl"],
            "deadLetterQueueUrl": self.outputs["DeadLetterQueueUrl"],
            "tableName": self.outputs["TableName"],
            "ownerIndex": self.outputs["OwnerIndex"],
            "region": self.aws.session.region_name,
        }

    def sessions(self) -> list[dict[str, Any]]:
        """The rows of all sessions, consistently read."""
        table = self.aws.session.resource("dynamodb", endpoint_url=self.aws.endpoint, config=self.aws.config).Table(
            self.outputs["TableName"]
        )
        return [
            dict(item)
            for shard in range(SESSION_SHARDS)
            for item in table.query(
                KeyConditionExpression="pk = :pk",
                ExpressionAttributeValues={":pk": session_shard(shard)},
                ConsistentRead=True,
            )["Items"]
        ]


@dataclass(frozen=True, slots=True)
class System:
    """The deployed stacks with their workers."""

    deployed: Deployed
    tasks: Tasks

    def start(self, count: int, revision: int | None = None) -> list[Task]:
        """Start tasks and wait until each of their worker processes has a live session; raises `NotReadyError`."""
        started = [self.tasks.start(revision) for _ in range(count)]
        deadline = time.monotonic() + READY_SECONDS
        while not all(self._ready(task) for task in started):
            late = time.monotonic() > deadline
            for task in started:
                if late or not task.running:
                    raise NotReadyError(f"{task.name} is not ready: {task.log[-2000:]}")
            time.sleep(0.1)
        return started

    def _ready(self, task: Task) -> bool:
        live = [
            row for row in self.deployed.sessions() if row["task_arn"] == task.arn and row["state"] == SessionState.LIVE
        ]
        return 0 < len(task.worker_pids) <= len(live)

    def describe(self) -> dict[str, Any]:
        """The line that `make local` prints."""
        return self.deployed.names | {
            "workers": [
                {"taskArn": task.arn, "supervisorPid": task.supervisor_pid, "workerPids": task.worker_pids}
                for task in self.tasks.started
            ]
        }


@contextmanager
def deployed(
    processes: Processes, settings: Mapping[str, str], worker_environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Deployed]:
    """Synthesize, start an emulator and deploy to it, with `settings` in place of the template's own values.

    Raises `SettingError` before anything starts, also for what workers would get beside them.
    """
    stacks = configured(assembly.load(assembly.synthesize()), settings, worker_environment)
    child, aws = emulator.start(processes)
    try:
        yield Deployed(aws, deploy(aws, stacks))
    finally:
        child.stop(grace=5.0)
        processes.forget(child)


@contextmanager
def system(stacks: Deployed, processes: Processes, worker_environment: Mapping[str, str]) -> Iterator[System]:
    """Worker tasks on deployed stacks: none at first, all stopped at the end."""
    definition = TaskDefinition.read(
        stacks.aws, cluster=stacks.outputs["ClusterName"], service=stacks.outputs["ServiceName"]
    )
    with MetadataServer() as metadata:
        tasks = Tasks(stacks.aws, processes, metadata, definition, worker_environment)
        try:
            yield System(stacks, tasks)
        finally:
            tasks.end()
