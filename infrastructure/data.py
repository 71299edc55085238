"""Data stack: what must survive every deployment. One table, the assignment queue with its dead letters, the stream."""

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infrastructure.settings import Settings

OWNER_INDEX = "by_owner"
VISIBILITY = Duration.seconds(30)
RECEIVES_BEFORE_DEAD_LETTER = 20


class DataStack(Stack):
    """Table, assignment queue, dead letters and output stream, retained and protected in stage `prod`."""

    def __init__(self, scope: Construct, id_: str, *, settings: Settings) -> None:
        super().__init__(
            scope,
            id_,
            description="WebSocket fleet: connections, leases, assignments and output",
            termination_protection=settings.retained,
        )
        removal = RemovalPolicy.RETAIN if settings.retained else RemovalPolicy.DESTROY
        self.owner_index = OWNER_INDEX
        self.table = self._table(settings, removal)
        self.dead_letters = sqs.Queue(
            self,
            "DeadLetters",
            retention_period=Duration.days(14),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            removal_policy=removal,
        )
        self.queue = sqs.Queue(
            self,
            "Assignments",
            visibility_timeout=VISIBILITY,
            receive_message_wait_time=Duration.seconds(20),
            retention_period=Duration.days(4),
            dead_letter_queue=sqs.DeadLetterQueue(
                queue=self.dead_letters, max_receive_count=RECEIVES_BEFORE_DEAD_LETTER
            ),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            removal_policy=removal,
        )
        self.stream = kinesis.Stream(
            self,
            "Output",
            stream_mode=kinesis.StreamMode.ON_DEMAND,
            encryption=kinesis.StreamEncryption.MANAGED,
            retention_period=Duration.hours(24),
            removal_policy=removal,
        )
        for name, value in {
            "TableName": self.table.table_name,
            "OwnerIndex": self.owner_index,
            "QueueUrl": self.queue.queue_url,
            "DeadLetterQueueUrl": self.dead_letters.queue_url,
            "StreamName": self.stream.stream_name,
        }.items():
            CfnOutput(self, name, value=value)

    @property
    def owner_index_arn(self) -> str:
        """ARN of the one index, for policies that name it exactly."""
        return f"{self.table.table_arn}/index/{self.owner_index}"

    def _table(self, settings: Settings, removal: RemovalPolicy) -> dynamodb.Table:
        """A single-region table on purpose: leases need linearizable writes, which replicas of a table do not give.

        The index holds keys only, since all who read it re-read the rows, and it is written only when an owner
        changes. On-demand without a cap: a throttled heartbeat would put a healthy worker on hold.
        """
        table = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name="sk", type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute="ttl",
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=settings.retained,
            removal_policy=removal,
        )
        table.add_global_secondary_index(
            index_name=OWNER_INDEX,
            partition_key=dynamodb.Attribute(name="owner", type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
            projection_type=dynamodb.ProjectionType.KEYS_ONLY,
        )
        return table
