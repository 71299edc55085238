"""The whole system with the proxy between it and AWS: every call of a function or task is seen, and can be struck."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from local.api import Api
from local.processes import Processes, python_environment
from local.system import Deployed, System, deployed, system
from local.tasks import Task
from local.witness import Witness
from tests.support.proxy import UNAVAILABLE, Call, FaultProxy, Rule

WORKER = "worker"
"""The caller by which the proxy knows all tasks; functions have the name of their package."""
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
FUNCTION_SERVICES = ("DYNAMODB", "SQS")
"""What functions use. They have the emulator's own address as the one for everything else."""


@dataclass(slots=True)
class Recorder:
    """A condition of a rule that is never met: it sees every call and strikes none."""

    calls: list[Call] = field(default_factory=list)

    def __call__(self, call: Call) -> bool:
        self.calls.append(call)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The running system."""

    stacks: Deployed
    running: System
    proxy: FaultProxy
    api: Api
    recorder: Recorder
    functions: Mapping[str, Mapping[str, Any]]
    """Their configurations, by the name of their package."""

    @property
    def calls(self) -> Sequence[Call]:
        """All calls so far."""
        return tuple(self.recorder.calls)

    def client(self, service: str) -> Any:
        """A client of the emulator that is neither seen nor struck."""
        aws = self.stacks.aws
        make: Any = aws.session.client
        return make(service, endpoint_url=aws.endpoint, config=aws.config)

    def start(self, count: int = 1) -> list[Task]:
        """Start tasks, and wait until they are members."""
        return self.running.start(count)

    def invoke(self, function: str, event: Mapping[str, Any]) -> Any:
        """Call a function as the service would that triggers it; returns its answer."""
        name = self.functions[function]["FunctionName"]
        answer = self.client("lambda").invoke(FunctionName=name, Payload=json.dumps(event).encode())
        return json.loads(answer["Payload"].read() or b"null")

    def get(self, connection: str) -> Any:
        """A connection as the API shows it."""
        return self.api.call("GET", f"/connections/{connection}").body

    def state(self, connection: str) -> str:
        """Its observed state."""
        state: str = self.get(connection)["status"]["state"]
        return state

    def workers(self) -> dict[str, Any]:
        """All workers as the API shows them, by id."""
        return {worker["workerId"]: worker for worker in self.api.call("GET", "/workers").body["workers"]}

    def rows(self) -> list[dict[str, Any]]:
        """Every item of the table."""
        table = self.stacks.outputs["TableName"]
        pages = self.client("dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        return [item for page in pages for item in page["Items"]]

    def queued(self, output: str = "QueueUrl") -> int:
        """Messages of a queue, those that somebody has received included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        url = self.stacks.outputs[output]
        attributes = self.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(attributes[name]) for name in names)

    def logged(self) -> str:
        """What functions and tasks have logged, metrics included."""
        logs = self.client("logs")
        groups = [group["logGroupName"] for group in logs.describe_log_groups()["logGroups"]]
        lines = [
            event["message"]
            for group in groups
            for page in logs.get_paginator("filter_log_events").paginate(logGroupName=group)
            for event in page["events"]
        ]
        return "\n".join([*lines, *(task.log for task in self.running.tasks.started)])


def until(look: Callable[[], object], what: str, patience: float = PATIENCE_SECONDS) -> None:
    """Wait until something is the case."""
    deadline = time.monotonic() + patience
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_SECONDS)


@contextmanager
def witness(processes: Processes) -> Iterator[Witness]:
    """The demo upstream."""
    child = processes.spawn("upstream", [sys.executable, "-m", "local.upstream"], env=python_environment(), piped=True)
    try:
        yield Witness(child)
    finally:
        child.kill()
        processes.forget(child)


@contextmanager
def watched(processes: Processes, settings: Mapping[str, str]) -> Iterator[Watched]:
    """The system without tasks, on an emulator of its own."""
    environment: dict[str, str] = {}
    recorder = Recorder()
    with (
        deployed(processes, {"WORKER_PROCESSES": "1", **settings}) as stacks,
        FaultProxy(stacks.aws.endpoint) as proxy,
        proxy.fault(Rule(UNAVAILABLE, recorder)),
        system(stacks, processes, environment) as running,
    ):
        environment["AWS_ENDPOINT_URL"] = proxy.endpoint(WORKER)
        yield Watched(
            stacks=stacks,
            running=running,
            proxy=proxy,
            api=Api(stacks.api_url),
            recorder=recorder,
            functions=_divert(stacks, proxy),
        )


def _divert(stacks: Deployed, proxy: FaultProxy) -> dict[str, Mapping[str, Any]]:
    """Have every function reach AWS as a caller of the proxy."""
    client = stacks.aws.session.client("lambda", endpoint_url=stacks.aws.endpoint, config=stacks.aws.config)
    functions: dict[str, Mapping[str, Any]] = {}
    for function in client.list_functions()["Functions"]:
        name = function["Handler"].split(".")[1]
        endpoint = proxy.endpoint(name)
        diverted = {f"AWS_ENDPOINT_URL_{service}": endpoint for service in FUNCTION_SERVICES}
        client.update_function_configuration(
            FunctionName=function["FunctionName"],
            Environment={"Variables": {**function["Environment"]["Variables"], **diverted}},
        )
        functions[name] = function
    return functions
