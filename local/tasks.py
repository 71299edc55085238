"""Worker tasks as processes: started, stopped and killed as Fargate would, from the deployed task definition."""

import re
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

from local.aws import ACCOUNT, REGION, Aws
from local.metadata import MetadataServer
from local.processes import Child, Processes, python_environment

DEFAULT_STOP_TIMEOUT = 30
"""Seconds from SIGTERM to SIGKILL where a container definition names none (ECS API reference)."""

END_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """What the service's task definition says of its one container."""

    cluster: str
    family: str
    revision: int
    command: Sequence[str]
    environment: Mapping[str, str]
    stop_timeout: float

    @classmethod
    def read(cls, aws: Aws, *, cluster: str, service: str) -> Self:
        """Read what is deployed."""
        ecs = aws.session.client("ecs", endpoint_url=aws.endpoint, config=aws.config)
        (found,) = ecs.describe_services(cluster=cluster, services=[service])["services"]
        task = ecs.describe_task_definition(taskDefinition=found["taskDefinition"])["taskDefinition"]
        (container,) = task["containerDefinitions"]
        return cls(
            cluster=cluster,
            family=task["family"],
            revision=task["revision"],
            command=[*container.get("entryPoint", ()), *container.get("command", ())],
            environment={entry["name"]: entry["value"] for entry in container.get("environment", ())},
            stop_timeout=container.get("stopTimeout", DEFAULT_STOP_TIMEOUT),
        )


class Task:
    """One task: a supervisor and its worker processes, in one process group as in one container."""

    def __init__(self, name: str, arn: str, child: Child, stop_timeout: float) -> None:
        self.name = name
        self.arn = arn
        self._child = child
        self._stop_timeout = stop_timeout

    @property
    def supervisor_pid(self) -> int:
        """The process that would be PID 1 of the container."""
        return self._child.pid

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes that run now."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._child.pid).children()
            return sorted(child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE)
        return []

    @property
    def exit_code(self) -> int | None:
        """How the supervisor ended (negative: by which signal), or None while it runs."""
        return self._child.poll()

    @property
    def running(self) -> bool:
        """Whether the supervisor runs."""
        return self.exit_code is None

    @property
    def log(self) -> str:
        """What the task has logged."""
        return self._child.log.read_text(errors="replace")

    def begin_stop(self) -> None:
        """Send SIGTERM to the supervisor."""
        self._child.signal(signal.SIGTERM)

    def stop(self, grace: float | None = None) -> int:
        """SIGTERM, then SIGKILL after `grace` seconds (the definition's stop timeout); returns the exit code."""
        return self._child.stop(self._stop_timeout if grace is None else grace)

    def kill(self) -> None:
        """SIGKILL to the whole task at once, as when its host is lost."""
        self._child.kill()


class Tasks:
    """Starts tasks from one task definition."""

    def __init__(
        self,
        aws: Aws,
        processes: Processes,
        metadata: MetadataServer,
        definition: TaskDefinition,
        extra: Mapping[str, str],
    ) -> None:
        self.definition = definition
        self.started: list[Task] = []
        self._aws = aws
        self._processes = processes
        self._metadata = metadata
        self._extra = extra

    def start(self, revision: int | None = None) -> Task:
        """Start one more task; of another revision of the same definition, if that is asked for."""
        name = f"task-{len(self.started) + 1}"
        definition = self.definition
        cluster = definition.cluster.rpartition("/")[2]
        arn = f"arn:aws:ecs:{REGION}:{ACCOUNT}:task/{cluster}/{uuid.uuid4().hex}"
        uri = self._metadata.add(
            arn, cluster=cluster, family=definition.family, revision=revision or definition.revision
        )
        child = self._processes.spawn(
            name,
            _local_command(definition.command),
            env=python_environment()
            | self._aws.environment
            | {"ECS_CONTAINER_METADATA_URI_V4": uri}
            | dict(definition.environment)
            | dict(self._extra),
        )
        task = Task(name, arn, child, definition.stop_timeout)
        self.started.append(task)
        return task

    def end(self) -> None:
        """End all tasks for good: the store goes next, so there is nobody to hand over to and nothing to wait for."""
        for task in self.started:
            task.begin_stop()
        for task in self.started:
            task.stop(END_SECONDS)


def _local_command(command: Sequence[str]) -> list[str]:
    """The image's Python is this one here."""
    program, *arguments = command
    return [sys.executable if re.fullmatch(r"python[\d.]*", program) else program, *arguments]
