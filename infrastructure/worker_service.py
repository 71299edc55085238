"""The Fargate service: its tasks hold state, so new ones start before old ones stop, and have time to hand over."""

from aws_cdk import Duration, Stack
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct

from infrastructure import environment, permissions
from infrastructure.acknowledgment import acknowledge
from infrastructure.data import DataStack
from infrastructure.logs import log_group
from infrastructure.metrics import fleet_metric
from infrastructure.network import Network
from infrastructure.python_function import PYTHON_VERSION, ROOT
from infrastructure.settings import OPEN_FILES, STOP_TIMEOUT_SECONDS, Architecture, Settings
from telemetry.metrics import LOAD

ENTRY_POINT = ["python", "-m", "worker"]
"""In exec form: a shell as PID 1 would not pass SIGTERM on, and every stop would end in SIGKILL."""

USER = "10001:10001"

_CPU_ARCHITECTURES = {
    Architecture.ARM64: ecs.CpuArchitecture.ARM64,
    Architecture.X86_64: ecs.CpuArchitecture.X86_64,
}
_IMAGE_PLATFORMS = {
    Architecture.ARM64: ecr_assets.Platform.LINUX_ARM64,
    Architecture.X86_64: ecr_assets.Platform.LINUX_AMD64,
}


class WorkerService(Construct):
    """Task definition, service and scaling of the workers."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        settings: Settings,
        data: DataStack,
        network: Network,
        cluster: ecs.ICluster,
    ) -> None:
        super().__init__(scope, id_)
        self.logs = log_group(self, "Logs", settings)
        self.service = ecs.FargateService(
            self,
            "Service",
            cluster=cluster,
            task_definition=self._task_definition(settings, data),
            platform_version=ecs.FargatePlatformVersion.VERSION1_4,
            vpc_subnets=network.subnets,
            security_groups=[network.security_group],
            assign_public_ip=network.assign_public_ip,
            # New tasks first, so that those which stop have somebody to hand over to.
            min_healthy_percent=100,
            max_healthy_percent=200,
            circuit_breaker=ecs.DeploymentCircuitBreaker(rollback=True),
            # It would stop healthy tasks to even out zones.
            availability_zone_rebalancing=ecs.AvailabilityZoneRebalancing.DISABLED,
            propagate_tags=ecs.PropagatedTagSource.SERVICE,
            enable_ecs_managed_tags=True,
        )
        self._scale(settings)

    def _task_definition(self, settings: Settings, data: DataStack) -> ecs.FargateTaskDefinition:
        task = ecs.FargateTaskDefinition(
            self,
            "Task",
            cpu=settings.task_cpu,
            memory_limit_mib=settings.task_memory,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=_CPU_ARCHITECTURES[settings.architecture],
                operating_system_family=ecs.OperatingSystemFamily.LINUX,
            ),
            task_role=self._task_role(settings, data),
        )
        container = task.add_container(
            "Worker",
            container_name="worker",
            image=ecs.ContainerImage.from_asset(
                str(ROOT),
                file="worker/Dockerfile",
                platform=_IMAGE_PLATFORMS[settings.architecture],
                build_args={"PYTHON_VERSION": PYTHON_VERSION},
            ),
            entry_point=ENTRY_POINT,
            environment=environment.worker(settings, data),
            # Without a load balancer this is all that tells the circuit breaker a bad deployment from a good one.
            health_check=ecs.HealthCheck(
                command=["CMD", "python", "-m", "worker.health"],
                interval=Duration.seconds(10),
                timeout=Duration.seconds(5),
                retries=3,
                start_period=Duration.seconds(30),
            ),
            stop_timeout=Duration.seconds(STOP_TIMEOUT_SECONDS),
            logging=ecs.LogDriver.aws_logs(log_group=self.logs, stream_prefix="worker"),
            user=USER,
            readonly_root_filesystem=True,
            version_consistency=ecs.VersionConsistency.ENABLED,
        )
        container.add_ulimits(ecs.Ulimit(name=ecs.UlimitName.NOFILE, soft_limit=OPEN_FILES, hard_limit=OPEN_FILES))
        acknowledge(task, "ECS2", "The variables are names and numbers; secrets are read by reference at each connect.")
        acknowledge(task, "IAM5[Resource::*]", "ecr:GetAuthorizationToken of the execution role supports no resource.")
        return task

    def _task_role(self, settings: Settings, data: DataStack) -> iam.Role:
        role = iam.Role(
            self,
            "TaskRole",
            assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"),
            inline_policies={"Work": iam.PolicyDocument(statements=permissions.worker(Stack.of(self), settings, data))},
        )
        acknowledge(
            role,
            "IAM5[Resource::arn:<AWS::Partition>:secretsmanager:<AWS::Region>:<AWS::AccountId>:"
            f"secret:{settings.secret_prefix}*]",
            "Requests name their secrets; the prefix is what keeps all others out of reach.",
        )
        return role

    def _scale(self, settings: Settings) -> None:
        """Follow the average load of the worker processes: out at once, in at most once an hour.

        Connections are what fills a worker, so neither CPU nor queue length would do: the queue is empty exactly when
        the fleet is busiest. A service whose every worker is full shows 100 % and so grows until the wanted fit.
        """
        self.service.auto_scale_task_count(
            min_capacity=settings.minimum_tasks, max_capacity=settings.maximum_tasks
        ).scale_to_track_custom_metric(
            "Load",
            metric=fleet_metric(settings, LOAD, "Average"),
            target_value=settings.target_load_percent,
            scale_out_cooldown=Duration.minutes(1),
            scale_in_cooldown=Duration.hours(1),
        )
