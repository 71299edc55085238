"""Fleet stack: tasks that hold state, a network without a way in, and the functions that notice a dead task."""

import re

import pytest

from infrastructure.settings import OPEN_FILES
from telemetry.metrics import LOAD, NAMESPACE
from tests.infrastructure.conftest import ROOT, Assembly, Properties, Resource, Synthesize
from worker.settings import Settings as WorkerSettings

WORKER_ENVIRONMENT = {
    "TABLE_NAME",
    "OWNER_INDEX",
    "QUEUE_URL",
    "STREAM_NAME",
    "ALLOWED_HOSTS",
    "SECRET_PREFIX",
    "WORKER_BUFFER_BYTES",
    "WORKER_CAPACITY",
    "WORKER_PROCESSES",
    "WORKER_DRAIN_SECONDS",
    "WORKER_CONNECT_RATE",
    "WORKER_GROUP_CONNECT_RATE",
    "LEASE_HEARTBEAT_SECONDS",
    "LEASE_SELF_FENCE_SECONDS",
    "LEASE_DRAIN_SECONDS",
    "LEASE_TAKEOVER_SECONDS",
    "LEASE_JUDGE_POLL_SECONDS",
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
}


@pytest.fixture(scope="module")
def task(assembly: Assembly) -> Properties:
    return assembly.one("AWS::ECS::TaskDefinition").properties


@pytest.fixture(scope="module")
def container(task: Properties) -> Properties:
    containers: list[Properties] = task["ContainerDefinitions"]
    assert len(containers) == 1
    return containers[0]


@pytest.fixture(scope="module")
def service(assembly: Assembly) -> Properties:
    return assembly.one("AWS::ECS::Service").properties


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return ROOT.joinpath("worker/Dockerfile").read_text()


def test_a_stopping_task_has_all_the_time_that_fargate_gives_and_drains_within_it(container: Properties) -> None:
    environment = {entry["Name"]: entry["Value"] for entry in container["Environment"]}
    assert container["StopTimeout"] == 120
    assert int(environment["WORKER_DRAIN_SECONDS"]) < container["StopTimeout"]


def test_the_worker_is_pid_1_in_exec_form(container: Properties, dockerfile: str) -> None:
    assert container["EntryPoint"] == ["python", "-m", "worker"]
    assert "Command" not in container
    assert 'ENTRYPOINT ["python", "-m", "worker"]' in dockerfile
    assert not container.get("LinuxParameters", {}).get("InitProcessEnabled", False)


def test_the_worker_may_open_a_socket_for_each_connection(container: Properties) -> None:
    (limit,) = container["Ulimits"]
    assert limit == {"Name": "nofile", "SoftLimit": OPEN_FILES, "HardLimit": OPEN_FILES}


def test_the_worker_is_nobody_on_a_read_only_disk(container: Properties, dockerfile: str) -> None:
    assert container["User"] == "10001:10001"
    assert "USER 10001:10001" in dockerfile
    assert container["ReadonlyRootFilesystem"] is True
    assert not container.get("Privileged", False)


def test_the_container_reports_its_health(container: Properties) -> None:
    check = container["HealthCheck"]
    assert check["Command"][:2] == ["CMD", "python"]
    assert check["Interval"] * check["Retries"] <= 60


def test_the_environment_is_the_contract(container: Properties) -> None:
    assert {entry["Name"] for entry in container["Environment"]} == WORKER_ENVIRONMENT
    assert "Secrets" not in container


def test_the_worker_accepts_its_environment(container: Properties) -> None:
    environment = {entry["Name"]: str(entry["Value"]) for entry in container["Environment"]}
    settings = WorkerSettings.from_environment(environment, cpus=1, files=container["Ulimits"][0]["HardLimit"])
    assert (settings.capacity, settings.processes) == (1000, 1)
    assert settings.kill_after < container["StopTimeout"]


def test_a_deployment_starts_new_tasks_first_and_rolls_back_by_itself(service: Properties) -> None:
    deployment = service["DeploymentConfiguration"]
    assert (deployment["MinimumHealthyPercent"], deployment["MaximumPercent"]) == (100, 200)
    assert deployment["DeploymentCircuitBreaker"] == {"Enable": True, "Rollback": True}


def test_nothing_stops_healthy_tasks_on_its_own(service: Properties) -> None:
    assert service["AvailabilityZoneRebalancing"] == "DISABLED"
    assert service["LaunchType"] == "FARGATE"


def test_a_deployment_does_not_reset_what_scaling_chose(service: Properties) -> None:
    assert "DesiredCount" not in service


def test_scaling_follows_the_average_load_out_fast_and_in_slowly(assembly: Assembly) -> None:
    target = assembly.one("AWS::ApplicationAutoScaling::ScalableTarget").properties
    assert target["MinCapacity"] == 2
    policy = assembly.one("AWS::ApplicationAutoScaling::ScalingPolicy").properties
    tracking = policy["TargetTrackingScalingPolicyConfiguration"]
    metric = tracking["CustomizedMetricSpecification"]
    assert (metric["Namespace"], metric["MetricName"], metric["Statistic"]) == (NAMESPACE, LOAD.name, "Average")
    assert tracking["TargetValue"] == 60
    assert (tracking["ScaleOutCooldown"], tracking["ScaleInCooldown"]) == (60, 3600)
    assert not tracking.get("DisableScaleIn", False)


@pytest.mark.parametrize(
    ("architecture", "task_cpu", "image"), [("arm64", "ARM64", "linux/arm64"), ("x86_64", "X86_64", "linux/amd64")]
)
def test_one_setting_is_the_architecture_of_everything(
    synthesize: Synthesize, architecture: str, task_cpu: str, image: str
) -> None:
    assembly = synthesize(architecture=architecture)
    platform = assembly.one("AWS::ECS::TaskDefinition").properties["RuntimePlatform"]
    assert platform == {"CpuArchitecture": task_cpu, "OperatingSystemFamily": "LINUX"}
    assets = next(assembly.directory.glob("*-fleet.assets.json")).read_text()
    assert f'"platform": "{image}"' in assets
    for function in assembly.of("AWS::Lambda::Function"):
        assert function.properties["Architectures"] == [architecture]
    for layer in assembly.of("AWS::Lambda::LayerVersion"):
        assert layer.properties["CompatibleArchitectures"] == [architecture]


def test_functions_and_image_run_the_same_python(assembly: Assembly, dockerfile: str) -> None:
    (runtime,) = {function.properties["Runtime"] for function in assembly.of("AWS::Lambda::Function")}
    default = re.search(r"ARG PYTHON_VERSION=(\S+)", dockerfile)
    assert default is not None
    assert runtime == f"python{default[1]}" == "python3.14"


def test_nobody_can_connect_to_a_worker(assembly: Assembly) -> None:
    group = assembly.one("AWS::EC2::SecurityGroup").properties
    assert not group.get("SecurityGroupIngress")
    assert not [one for one in assembly.all() if one.type == "AWS::EC2::SecurityGroupIngress"]
    assert not any(subnet.properties["MapPublicIpOnLaunch"] for subnet in assembly.of("AWS::EC2::Subnet"))


def test_by_default_there_is_no_nat_gateway_to_pay_for(assembly: Assembly, service: Properties) -> None:
    assert not [one for one in assembly.all() if one.type == "AWS::EC2::NatGateway"]
    assert service["NetworkConfiguration"]["AwsvpcConfiguration"]["AssignPublicIp"] == "ENABLED"


def test_behind_nat_no_worker_has_a_public_address(synthesize: Synthesize) -> None:
    assembly = synthesize(network="nat")
    assert len(assembly.of("AWS::EC2::NatGateway")) == 2
    network = assembly.one("AWS::ECS::Service").properties["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert network["AssignPublicIp"] == "DISABLED"
    assert all("Private" in subnet["Ref"] for subnet in network["Subnets"])


def test_traffic_to_the_table_and_to_image_layers_stays_free(assembly: Assembly) -> None:
    endpoints = assembly.of("AWS::EC2::VPCEndpoint")
    assert {endpoint.properties["VpcEndpointType"] for endpoint in endpoints} == {"Gateway"}
    services = {endpoint.properties["ServiceName"]["Fn::Join"][1][-1] for endpoint in endpoints}
    assert services == {".dynamodb", ".s3"}


def test_a_stopped_task_of_this_cluster_reaches_the_function(assembly: Assembly) -> None:
    cluster = assembly.one("AWS::ECS::Cluster").logical_id
    (rule,) = [one for one in assembly.of("AWS::Events::Rule", stack="fleet") if "EventPattern" in one.properties]
    assert rule.properties["EventPattern"] == {
        "source": ["aws.ecs"],
        "detail-type": ["ECS Task State Change"],
        "detail": {"clusterArn": [{"Fn::GetAtt": [cluster, "Arn"]}], "lastStatus": ["STOPPED"]},
    }
    (target,) = rule.properties["Targets"]
    assert target["Arn"]["Fn::GetAtt"][0] == handler(assembly, "task_stopped").logical_id


def test_the_audit_runs_every_minute_and_not_twice(assembly: Assembly) -> None:
    (rule,) = [one for one in assembly.of("AWS::Events::Rule", stack="fleet") if "ScheduleExpression" in one.properties]
    assert rule.properties["ScheduleExpression"] == "rate(1 minute)"
    (target,) = rule.properties["Targets"]
    audit = handler(assembly, "audit")
    assert target["Arn"]["Fn::GetAtt"][0] == audit.logical_id
    assert target["RetryPolicy"]["MaximumRetryAttempts"] == 0
    assert audit.properties["Timeout"] < 60


def handler(assembly: Assembly, name: str) -> Resource:
    (function,) = [
        one
        for one in assembly.of("AWS::Lambda::Function")
        if one.properties["Handler"] == f"lambdas.{name}.handler.handler"
    ]
    return function
