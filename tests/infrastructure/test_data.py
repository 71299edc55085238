"""Data stack: the table that leases need, the queue of hints, the stream; kept and protected."""

import os
from unittest import mock

import boto3
import moto
import pytest

from tests.infrastructure.conftest import Assembly, Synthesize


def test_the_table_is_on_demand_and_recoverable(assembly: Assembly) -> None:
    table = assembly.one("AWS::DynamoDB::Table").properties
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]] == [("pk", "HASH"), ("sk", "RANGE")]


def test_the_one_index_holds_keys_only_and_nothing_that_a_heartbeat_changes(assembly: Assembly) -> None:
    (index,) = assembly.one("AWS::DynamoDB::Table").properties["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "by_owner"
    assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    assert [key["AttributeName"] for key in index["KeySchema"]] == ["owner", "pk"]


def test_no_throughput_cap_can_throttle_a_heartbeat(assembly: Assembly) -> None:
    table = assembly.one("AWS::DynamoDB::Table").properties
    assert not {"OnDemandThroughput", "ProvisionedThroughput"} & table.keys()


def test_the_table_of_the_template_answers_the_question_who_owns_what(assembly: Assembly) -> None:
    properties = assembly.one("AWS::DynamoDB::Table").properties
    fields = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingMode")
    credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "eu-west-1"}
    with mock.patch.dict(os.environ, credentials), moto.mock_aws():
        client = boto3.client("dynamodb")
        client.create_table(TableName="fleet", **{field: properties[field] for field in fields})
        for pk, owner in (("CONNECTION#2", "s1"), ("CONNECTION#1", "s1"), ("CONNECTION#3", "s2")):
            client.put_item(
                TableName="fleet",
                Item={"pk": {"S": pk}, "sk": {"S": "LEASE"}, "owner": {"S": owner}, "status": {"S": "OPEN"}},
            )
        found = client.query(
            TableName="fleet",
            IndexName="by_owner",
            KeyConditionExpression="#owner = :owner",
            ExpressionAttributeNames={"#owner": "owner"},
            ExpressionAttributeValues={":owner": {"S": "s1"}},
        )["Items"]
    assert [item["pk"]["S"] for item in found] == ["CONNECTION#1", "CONNECTION#2"]
    assert all(item.keys() == {"pk", "sk", "owner"} for item in found)


def test_assignments_are_seen_again_after_30_seconds_and_set_aside_after_20_receipts(assembly: Assembly) -> None:
    queues = {queue.logical_id: queue.properties for queue in assembly.of("AWS::SQS::Queue")}
    redriving = [queue for queue in queues.values() if "RedrivePolicy" in queue]
    assert len(queues) == 2
    (assignments,) = redriving
    assert assignments["VisibilityTimeout"] == 30
    assert assignments["RedrivePolicy"]["maxReceiveCount"] == 20
    dead_letters = queues[assignments["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]]
    assert dead_letters["MessageRetentionPeriod"] == 14 * 86_400


def test_queues_are_encrypted_and_refuse_plain_http(assembly: Assembly) -> None:
    queues = {queue.logical_id for queue in assembly.of("AWS::SQS::Queue")}
    assert all(queue.properties["SqsManagedSseEnabled"] for queue in assembly.of("AWS::SQS::Queue"))
    protected = set()
    for policy in assembly.of("AWS::SQS::QueuePolicy"):
        for statement in policy.properties["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Deny" and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}:
                protected |= {queue["Ref"] for queue in policy.properties["Queues"]}
    assert protected == queues


def test_the_stream_scales_by_itself_and_is_encrypted(assembly: Assembly) -> None:
    stream = assembly.one("AWS::Kinesis::Stream").properties
    assert stream["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
    assert stream["StreamEncryption"]["EncryptionType"] == "KMS"


@pytest.mark.parametrize(("stage", "policy", "protected"), [("prod", "Retain", True), ("dev", "Delete", False)])
def test_data_outlives_its_stack_only_where_it_is_meant_to(
    synthesize: Synthesize, stage: str, policy: str, protected: bool
) -> None:
    assembly = synthesize(stage=stage)
    kept = assembly.of("AWS::DynamoDB::Table", "AWS::SQS::Queue", "AWS::Kinesis::Stream", "AWS::Logs::LogGroup")
    assert {(one.raw["DeletionPolicy"], one.raw["UpdateReplacePolicy"]) for one in kept} == {(policy, policy)}
    assert assembly.one("AWS::DynamoDB::Table").properties["DeletionProtectionEnabled"] is protected
    manifest = assembly.directory.joinpath("manifest.json").read_text()
    assert ('"terminationProtection": true' in manifest) is protected
