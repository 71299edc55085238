"""Fleet stack: network, cluster, the worker service, and the two functions that look after its leases."""

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from constructs import Construct

from infrastructure import environment, permissions
from infrastructure.data import DataStack
from infrastructure.network import Network
from infrastructure.python_function import PythonFunction
from infrastructure.settings import Settings
from infrastructure.worker_service import WorkerService


class FleetStack(Stack):
    """All that holds connections, and all that notices when a holder is gone."""

    def __init__(self, scope: Construct, id_: str, *, settings: Settings, data: DataStack) -> None:
        super().__init__(scope, id_, description="WebSocket fleet: workers")
        network = Network(self, "Network", settings=settings)
        self.cluster = ecs.Cluster(
            self, "Cluster", vpc=network.vpc, container_insights_v2=ecs.ContainerInsights.ENABLED
        )
        self.workers = WorkerService(
            self, "Workers", settings=settings, data=data, network=network, cluster=self.cluster
        )
        self.task_stopped = PythonFunction(
            self,
            "TaskStopped",
            settings=settings,
            name="task_stopped",
            description="Declares the sessions of a stopped task dead and queues what they held",
            environment=environment.common(settings, data),
            policy=permissions.task_stopped(data),
            timeout=Duration.seconds(60),
        )
        self._on_task_stopped()
        self.audit = PythonFunction(
            self,
            "Audit",
            settings=settings,
            name="audit",
            description="Counts the fleet every minute and repairs rows that every worker missed",
            environment=environment.common(settings, data),
            policy=permissions.audit(data),
            timeout=Duration.seconds(55),
        )
        self._every_minute()
        CfnOutput(self, "ClusterName", value=self.cluster.cluster_name)
        CfnOutput(self, "ServiceName", value=self.workers.service.service_name)

    def _on_task_stopped(self) -> None:
        """An event that is lost costs the takeover time and nothing else, so there is no queue for failed ones."""
        events.Rule(
            self,
            "TaskStoppedRule",
            description="A task of the fleet stopped",
            event_pattern=events.EventPattern(
                source=["aws.ecs"],
                detail_type=["ECS Task State Change"],
                detail={"clusterArn": [self.cluster.cluster_arn], "lastStatus": ["STOPPED"]},
            ),
            targets=[targets.LambdaFunction(self.task_stopped, max_event_age=Duration.minutes(10), retry_attempts=10)],
        )

    def _every_minute(self) -> None:
        """An audit that failed is not repeated: the next one is due within the minute."""
        events.Rule(
            self,
            "AuditRule",
            description="Audit the fleet",
            schedule=events.Schedule.rate(Duration.minutes(1)),
            targets=[targets.LambdaFunction(self.audit, max_event_age=Duration.minutes(1), retry_attempts=0)],
        )
