"""Every role may do what its function or task does, and nothing else.

The policies are those of the synthesized template, as the emulator has them after the deployment. What is done is what
the proxy saw while the fleet did its whole job. (The emulator itself allows everything to everybody.)
"""

import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import pytest

from local.aws import ACCOUNT, REGION
from local.processes import Processes
from local.tasks import Task
from local.witness import Witness
from tests.support.proxy import UNAVAILABLE, Call, Rule, claim
from tests.support.watched import WORKER, Watched, until, watched, witness

SECRET = "websocket-fleet/feed"
CONNECTIONS = 6

OF_THE_PLATFORM: Mapping[str, str] = {
    "logs:CreateLogStream": "Lambda does it in the function's name before the function runs",
    "logs:PutLogEvents": "Lambda does it in the function's name with whatever the function prints",
}
"""Actions that none of our code needs, and why a role of a function has them."""

ROLES_OF_SERVICES: Mapping[str, str] = {
    "ApiCloudWatchRole": "API Gateway writes its access log",
    "NetworkVpcRefusedTraffic": "the VPC writes its flow log",
    "WorkersTaskExecutionRole": "the ECS agent pulls the image and writes what containers print",
}
"""Roles in which no code of ours runs, by the beginning of their logical names."""

IAM_ACTIONS: Mapping[str, str] = {
    "sqs.ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
    "sqs.DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs.SendMessageBatch": "sqs:SendMessage",
}
"""Operations that are authorised under another name (Service Authorization Reference, "Actions for Amazon SQS")."""

IN_TRANSACTIONS: Mapping[str, str] = {
    "ConditionCheck": "ConditionCheckItem",
    "Delete": "DeleteItem",
    "Put": "PutItem",
    "Update": "UpdateItem",
}
"""A transaction is authorised part by part (DynamoDB Developer Guide, "Transactions and IAM")."""


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """An action on a resource; of a grant, the resource may have wildcards."""

    action: str
    resource: str

    def covers(self, needed: "Access") -> bool:
        """Whether this grant allows what is needed."""
        pattern = re.escape(self.resource).replace(r"\*", ".*").replace(r"\?", ".")
        return self.action == needed.action and re.fullmatch(pattern, needed.resource) is not None


def arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"


def needed(call: Call) -> Iterator[Access]:
    """What a call needs to be allowed."""
    body = call.body
    match call.service, call.operation:
        case "dynamodb", "TransactWriteItems":
            for part in body["TransactItems"]:
                ((kind, of_item),) = part.items()
                yield Access(f"dynamodb:{IN_TRANSACTIONS[kind]}", arn("dynamodb", f"table/{of_item['TableName']}"))
        case "dynamodb", "BatchGetItem":
            for table in body["RequestItems"]:
                yield Access("dynamodb:BatchGetItem", arn("dynamodb", f"table/{table}"))
        case "dynamodb", operation:
            index = f"/index/{body['IndexName']}" if "IndexName" in body else ""
            yield Access(f"dynamodb:{operation}", arn("dynamodb", f"table/{body['TableName']}{index}"))
        case "sqs", operation:
            action = IAM_ACTIONS.get(f"sqs.{operation}", f"sqs:{operation}")
            yield Access(action, arn("sqs", body["QueueUrl"].rpartition("/")[2]))
        case "kinesis", operation:
            yield Access(f"kinesis:{operation}", arn("kinesis", f"stream/{body['StreamName']}"))
        case "secretsmanager", operation:
            # A secret's ARN ends in six characters that its name does not have.
            yield Access(f"secretsmanager:{operation}", arn("secretsmanager", f"secret:{body['SecretId']}-a1B2c3"))
        case service, operation:
            raise AssertionError(f"{call.caller} calls {service}.{operation}, which no role is meant to need")


@dataclass(frozen=True, slots=True)
class Job:
    """What was done, and what may be done."""

    calls: Iterable[Call]
    grants: Mapping[str, Set[Access]]
    """By caller."""
    roles: Set[str]
    roles_in_use: Set[str]

    def needed(self, caller: str) -> set[Access]:
        """All that a caller has needed."""
        return {access for call in self.calls if call.caller == caller for access in needed(call)}


CALLERS = ("api", "audit", "fleet_widget", "task_stopped", WORKER)


@pytest.fixture(scope="module")
def job(processes: Processes) -> Iterator[Job]:
    with watched(processes, {}) as fleet, witness(processes) as upstream:
        work(fleet, upstream)
        roles = {name: configuration["Role"] for name, configuration in fleet.functions.items()}
        definition = fleet.running.tasks.definition.family
        task = fleet.client("ecs").describe_task_definition(taskDefinition=definition)["taskDefinition"]
        roles[WORKER] = task["taskRoleArn"]
        names = {caller: role.rpartition("/")[2] for caller, role in roles.items()}
        yield Job(
            calls=fleet.calls,
            grants={caller: granted(fleet.client("iam"), name) for caller, name in names.items()},
            roles={role["RoleName"] for role in fleet.client("iam").list_roles()["Roles"]},
            roles_in_use=set(names.values()),
        )


def granted(iam: Any, role: str) -> set[Access]:
    """What the policies of a role allow."""
    assert iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"] == []
    found = set()
    for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
        for statement in iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]["Statement"]:
            assert statement.keys() == {"Action", "Effect", "Resource"}
            assert statement["Effect"] == "Allow"
            for action in listed(statement["Action"]):
                found |= {Access(action, resource) for resource in listed(statement["Resource"])}
    return found


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def work(fleet: Watched, upstream: Witness) -> None:
    """Everything that the fleet is for, and what goes wrong with it."""
    fleet.client("secretsmanager").create_secret(Name=SECRET, SecretString="value")
    first, second = fleet.start(2)

    def post(number: int) -> str:
        body = {
            "url": f"{upstream.url}/{number}",
            "headers": {"X-Key": "${key}"},
            "secretRefs": {"key": SECRET},
            "onOpen": ["subscribe"],
            "labels": {"of": "job"},
        }
        accepted: str = fleet.api.call("POST", "/connections", body).body["connectionId"]
        return accepted

    def opened(connections: Iterable[str]) -> None:
        until(lambda: all(fleet.state(connection) == "OPEN" for connection in connections), "not all are open")

    connections = [post(number) for number in range(CONNECTIONS)]
    opened(connections)
    look(fleet)
    change(fleet, connections[0])
    with fleet.proxy.fault(Rule(UNAVAILABLE, claim)):
        connections.append(post(CONNECTIONS))
        seen(fleet, "ChangeMessageVisibilityBatch", "no hint was given back")
    opened(connections)
    crash(fleet, second)
    opened(connections)
    drain(fleet, second)
    opened(connections)
    fleet.api.call("DELETE", f"/connections/{connections[0]}")
    reaches(fleet, connections[0], "STOPPED")
    lose(fleet, first, connections[1])


def look(fleet: Watched) -> None:
    owner = next(iter(fleet.workers()))
    for query in ("", f"?owner={owner}", "?label=of%3Djob", "?status=OPEN"):
        fleet.api.call("GET", f"/connections{query}")
    seen(fleet, "PutRecords", "nothing was put on the stream")


def change(fleet: Watched, connection: str) -> None:
    for wanted, state in (("PAUSED", "PAUSED"), ("RUNNING", "OPEN")):
        fleet.api.call("PATCH", f"/connections/{connection}", {"desired": wanted})
        reaches(fleet, connection, state)


def reaches(fleet: Watched, connection: str, state: str) -> None:
    until(lambda: fleet.state(connection) == state, f"not {state}")


def crash(fleet: Watched, task: Task) -> None:
    """A worker process dies; its supervisor offers what it held, and starts another."""
    before = alive_of(fleet, task)
    os.kill(task.worker_pids[0], signal.SIGKILL)
    until(lambda: alive_of(fleet, task) not in ([], before), "no new worker process")
    seen(fleet, "SendMessageBatch", "no hint was sent by a worker", caller=WORKER)


def drain(fleet: Watched, task: Task) -> None:
    (worker,) = alive_of(fleet, task)
    fleet.api.call("POST", f"/workers/{worker}/drain")
    until(lambda: not task.running, "the drained task has not ended")


def lose(fleet: Watched, last: Task, connection: str) -> None:
    """The last task is lost: nobody is left to help but the functions."""
    last.kill()
    container = {"exitCode": 137}
    fleet.invoke("task_stopped", {"detail": {"taskArn": last.arn, "lastStatus": "STOPPED", "containers": [container]}})
    assert alive_of(fleet, last) == []
    fleet.invoke("audit", {})
    fleet.api.call("POST", f"/connections/{connection}/force-release")
    fleet.invoke("fleet_widget", {})


def alive_of(fleet: Watched, task: Task) -> list[str]:
    return [name for name, row in fleet.workers().items() if row["taskArn"] == task.arn and row["state"] == "LIVE"]


def seen(fleet: Watched, operation: str, otherwise: str, caller: str = WORKER) -> None:
    until(lambda: any((call.caller, call.operation) == (caller, operation) for call in fleet.calls), otherwise)


@pytest.mark.parametrize("caller", CALLERS)
def test_every_call_is_allowed(job: Job, caller: str) -> None:
    grants = job.grants[caller]
    refused = {access for access in job.needed(caller) if not any(grant.covers(access) for grant in grants)}

    assert job.needed(caller)
    assert not refused


@pytest.mark.parametrize("caller", CALLERS)
def test_nothing_is_allowed_that_is_never_done(job: Job, caller: str) -> None:
    done = job.needed(caller)
    idle = {grant for grant in job.grants[caller] if not any(grant.covers(access) for access in done)}

    assert {grant.action for grant in idle} == (set() if caller == WORKER else OF_THE_PLATFORM.keys())


def test_every_other_role_is_one_in_which_none_of_our_code_runs(job: Job) -> None:
    others = job.roles - job.roles_in_use

    assert len(job.roles_in_use) == len(CALLERS)
    assert len(others) == len(ROLES_OF_SERVICES)
    assert all(any(name in role for name in ROLES_OF_SERVICES) for role in others)
