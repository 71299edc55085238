"""The template that goes to AWS, deployed to the emulator."""

import urllib.request
from http import HTTPStatus
from urllib.error import HTTPError

import pytest

from local import assembly
from local.api import Api
from local.bridges import LEFT_OUT
from local.system import Deployed
from local.tasks import TaskDefinition


@pytest.fixture(scope="module")
def synthesized() -> assembly.Assembly:
    return assembly.load(assembly.synthesize())


def test_stacks_come_after_those_that_they_need(synthesized: assembly.Assembly) -> None:
    names = [stack.name for stack in synthesized.stacks]

    assert len(names) == 4
    assert names.index("websocket-fleet-data") < min(
        names.index(f"websocket-fleet-{name}") for name in ("api", "fleet", "observability")
    )


def test_nothing_is_left_out_that_the_template_does_not_have(synthesized: assembly.Assembly) -> None:
    kinds = {resource["Type"] for stack in synthesized.stacks for resource in stack.template["Resources"].values()}

    assert LEFT_OUT.keys() <= kinds


def test_an_assembly_is_reused_while_its_inputs_stay_the_same() -> None:
    assert assembly.synthesize() == assembly.synthesize()


def test_the_table_has_what_cloudformation_drops_there(stacks: Deployed) -> None:
    dynamodb = stacks.aws.session.client("dynamodb", endpoint_url=stacks.aws.endpoint, config=stacks.aws.config)
    table = stacks.outputs["TableName"]

    expiry = dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    backups = dynamodb.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]

    assert expiry == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


def test_the_api_refuses_who_does_not_sign(stacks: Deployed) -> None:
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(f"{stacks.api_url}/connections", timeout=30)

    with refused.value:
        assert refused.value.code == HTTPStatus.FORBIDDEN


def test_a_signed_request_reaches_the_function(stacks: Deployed) -> None:
    answer = Api(stacks.api_url).call("GET", "/connections")

    assert (answer.status, answer.body["connections"]) == (HTTPStatus.OK, [])


def test_tasks_are_started_as_the_task_definition_says(stacks: Deployed) -> None:
    definition = TaskDefinition.read(
        stacks.aws, cluster=stacks.outputs["ClusterName"], service=stacks.outputs["ServiceName"]
    )

    assert definition.command == ["python", "-m", "worker"]
    assert definition.stop_timeout == 120
    assert definition.environment["TABLE_NAME"] == stacks.outputs["TableName"]
    assert definition.environment["STREAM_NAME"] == stacks.outputs["StreamName"]
    assert definition.environment["QUEUE_URL"] == stacks.outputs["QueueUrl"]
    assert definition.environment["ALLOWED_HOSTS"] == "127.0.0.0/8,::1,localhost"
