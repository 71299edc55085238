"""Who this task is, as ECS tells it.

Source: Amazon ECS Developer Guide, "Task metadata endpoint version 4 for tasks on Fargate".
"""

import json
import time
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Self

ATTEMPTS = 5
ATTEMPT_SECONDS = 2.0


class NoMetadata(Exception):
    """The endpoint is not there or does not answer: this process does not run as an ECS task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetadata:
    """What a session row says of its task."""

    task_arn: str
    revision: int
    """Of the task definition: a newer one takes over from an older one."""

    @classmethod
    def read(cls, endpoint: str | None) -> Self:
        """Ask the endpoint, whose address ECS gives a container. Blocks for seconds at most. Raises `NoMetadata`."""
        if not endpoint:
            raise NoMetadata("there is no task metadata endpoint: this does not run as an ECS task")
        reason = ""
        for attempt in range(ATTEMPTS):
            time.sleep(0.2 * attempt)
            try:
                with urllib.request.urlopen(f"{endpoint}/task", timeout=ATTEMPT_SECONDS) as answer:  # noqa: S310 - set by ECS
                    task = json.load(answer)
                return cls(task_arn=task["TaskARN"], revision=int(task["Revision"]))
            except (OSError, HTTPException, ValueError, KeyError) as error:
                reason = f"{type(error).__name__}: {error}"
        raise NoMetadata(f"{endpoint}/task: {reason}")
