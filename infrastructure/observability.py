"""Observability stack: dashboards, alarms with their topic, saved queries, and the widget that shows the live fleet."""

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from infrastructure import environment, permissions
from infrastructure.alarms import Alarms
from infrastructure.api import ApiStack
from infrastructure.dashboards import deep_dive, service_health
from infrastructure.data import DataStack
from infrastructure.fleet import FleetStack
from infrastructure.log_queries import save_queries
from infrastructure.python_function import PythonFunction
from infrastructure.settings import Settings


class ObservabilityStack(Stack):
    """All that watches, and nothing that the fleet needs to run."""

    def __init__(
        self, scope: Construct, id_: str, *, settings: Settings, data: DataStack, api: ApiStack, fleet: FleetStack
    ) -> None:
        super().__init__(scope, id_, description="WebSocket fleet: dashboards and alarms")
        self.widget = PythonFunction(
            self,
            "FleetWidget",
            settings=settings,
            name="fleet_widget",
            description="Renders the live fleet for the dashboard",
            environment=environment.common(settings, data),
            policy=permissions.fleet_widget(data),
            timeout=Duration.seconds(10),
        )
        self.topic = self._topic(settings)
        self._on_failed_deployment(fleet)
        alarms = Alarms(self, "Alarms", settings=settings, data=data, api=api, fleet=fleet, topic=self.topic).alarms
        health = service_health(self, settings=settings, api=api, alarms=alarms, widget=self.widget)
        deep_dive(self, settings=settings, data=data, api=api, fleet=fleet)
        save_queries(
            self,
            settings=settings,
            workers=fleet.workers.logs,
            functions=[function.log_group for function in (api.function, fleet.task_stopped, fleet.audit, self.widget)],
        )
        CfnOutput(self, "DashboardName", value=health.dashboard_name)

    def _topic(self, settings: Settings) -> sns.Topic:
        """Requiring TLS replaces the policy that a topic has by default, so its publishers must be allowed by name.

        Without that, alarms would turn red and nobody would be told.
        """
        topic = sns.Topic(self, "Alerts", display_name=settings.name, enforce_ssl=True)
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="PublishFromThisAccount",
                principals=[
                    iam.ServicePrincipal("cloudwatch.amazonaws.com"),
                    iam.ServicePrincipal("events.amazonaws.com"),
                ],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": self.account}},
            )
        )
        if settings.alarm_email:
            topic.add_subscription(subscriptions.EmailSubscription(settings.alarm_email))
        return topic

    def _on_failed_deployment(self, fleet: FleetStack) -> None:
        rule = events.Rule(
            self,
            "DeploymentFailedRule",
            description="The circuit breaker rolled a deployment of the workers back",
            event_pattern=events.EventPattern(
                source=["aws.ecs"],
                detail_type=["ECS Deployment State Change"],
                resources=[fleet.workers.service.service_arn],
                detail={"eventName": ["SERVICE_DEPLOYMENT_FAILED"]},
            ),
        )
        # By its ARN, since for a topic of this stack the target would allow every account's events to be published.
        topic = sns.Topic.from_topic_arn(self, "AlertsByArn", self.topic.topic_arn)
        rule.add_target(targets.SnsTopic(topic))
