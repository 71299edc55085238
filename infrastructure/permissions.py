"""Who may do what: the policy of every role, written out action by action.

The CDK's grants would add index wildcards and actions that nobody calls. Every write of a row, whether it makes or
changes it, is a conditional UpdateItem; a transaction needs no action beyond those of its parts.
"""

from aws_cdk import ArnFormat, Stack
from aws_cdk import aws_iam as iam

from infrastructure.data import DataStack
from infrastructure.settings import Settings


def api(data: DataStack) -> list[iam.PolicyStatement]:
    """The API: reads and writes rows, lists by scan or by owner, queues assignments."""
    return [
        _allow(
            data.table.table_arn,
            "dynamodb:BatchGetItem",
            "dynamodb:GetItem",
            "dynamodb:Query",
            "dynamodb:Scan",
            "dynamodb:UpdateItem",
        ),
        _allow(data.owner_index_arn, "dynamodb:Query"),
        _allow(data.queue.queue_arn, "sqs:SendMessage"),
    ]


def worker(stack: Stack, settings: Settings, data: DataStack) -> list[iam.PolicyStatement]:
    """A worker task: leases, assignments, output, and the secrets that requests may refer to."""
    secrets = stack.format_arn(
        service="secretsmanager",
        resource="secret",
        resource_name=f"{settings.secret_prefix}*",
        arn_format=ArnFormat.COLON_RESOURCE_NAME,
    )
    return [
        _allow(
            data.table.table_arn,
            "dynamodb:BatchGetItem",
            "dynamodb:GetItem",
            "dynamodb:Query",
            "dynamodb:UpdateItem",
        ),
        _allow(data.owner_index_arn, "dynamodb:Query"),
        _allow(
            data.queue.queue_arn,
            "sqs:ChangeMessageVisibility",
            "sqs:DeleteMessage",
            "sqs:ReceiveMessage",
            "sqs:SendMessage",
        ),
        _allow(data.stream.stream_arn, "kinesis:PutRecords"),
        _allow(secrets, "secretsmanager:GetSecretValue"),
    ]


def task_stopped(data: DataStack) -> list[iam.PolicyStatement]:
    """The function that declares the sessions of a stopped task dead and queues what they held."""
    return [
        _allow(data.table.table_arn, "dynamodb:Query", "dynamodb:UpdateItem"),
        _allow(data.owner_index_arn, "dynamodb:Query"),
        _allow(data.queue.queue_arn, "sqs:SendMessage"),
    ]


def audit(data: DataStack) -> list[iam.PolicyStatement]:
    """The function that counts the fleet by a scan of the index and repairs rows that every worker missed."""
    return [
        _allow(
            data.table.table_arn,
            "dynamodb:BatchGetItem",
            "dynamodb:GetItem",
            "dynamodb:Query",
            "dynamodb:UpdateItem",
        ),
        _allow(data.owner_index_arn, "dynamodb:Scan"),
        _allow(data.queue.queue_arn, "sqs:SendMessage"),
    ]


def fleet_widget(data: DataStack) -> list[iam.PolicyStatement]:
    """The dashboard widget: reads the sessions."""
    return [_allow(data.table.table_arn, "dynamodb:Query")]


def _allow(resource: str, *actions: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(actions=list(actions), resources=[resource])
