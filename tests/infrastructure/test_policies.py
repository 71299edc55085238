"""Rules that hold for every stack, and that neither the CDK's validator nor cdk-nag checks."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.infrastructure.conftest import ROOT, STACKS, Assembly, Properties, Synthesize

PlacedStatement = tuple[str, str, Properties]

OUTPUTS = {
    "data": {"TableName", "OwnerIndex", "QueueUrl", "DeadLetterQueueUrl", "StreamName"},
    "api": {"ApiUrl"},
    "fleet": {"ClusterName", "ServiceName"},
    "observability": {"DashboardName"},
}

WILDCARDS = {
    # (action, what the resource is): why no narrower resource can be named
    ("ecr:GetAuthorizationToken", '"*"'),  # supports no resource
    ("secretsmanager:GetSecretValue", "websocket-fleet/*"),  # requests name the secrets; the prefix is the fence
}


@pytest.fixture(scope="module")
def statements(assembly: Assembly) -> list[PlacedStatement]:
    """(stack, logical id, statement) of every policy that lets a role of ours do something."""
    found = []
    for one in assembly.of("AWS::IAM::Role", "AWS::IAM::Policy"):
        documents = [policy["PolicyDocument"] for policy in one.properties.get("Policies", [])]
        documents += [one.properties["PolicyDocument"]] if "PolicyDocument" in one.properties else []
        found += [
            (one.stack, one.logical_id, statement) for document in documents for statement in document["Statement"]
        ]
    return found


def actions(statement: Properties) -> list[str]:
    listed = statement["Action"]
    return [listed] if isinstance(listed, str) else listed


def test_no_policy_has_a_wildcard_action(statements: list[PlacedStatement]) -> None:
    assert not [statement for _, _, statement in statements if any("*" in action for action in actions(statement))]


def test_no_policy_has_a_wildcard_resource_beyond_the_acknowledged(statements: list[PlacedStatement]) -> None:
    found = set()
    for _, _, statement in statements:
        resource = json.dumps(statement["Resource"])
        if "*" in resource:
            tail = re.findall(r'[^":]*\*"?', resource)[-1]
            found |= {(action, '"*"' if resource == '"*"' else tail.rstrip('"')) for action in actions(statement)}
    assert found == WILDCARDS


def test_the_index_is_named_exactly(statements: list[PlacedStatement]) -> None:
    indexes = [json.dumps(s["Resource"]) for _, _, s in statements if "/index/" in json.dumps(s["Resource"])]
    assert indexes
    assert all("/index/by_owner" in index for index in indexes)


def test_nobody_can_delete_rows_or_change_tables_queues_and_streams(statements: list[PlacedStatement]) -> None:
    allowed = {action for _, _, statement in statements for action in actions(statement)}
    assert {a for a in allowed if a.startswith("dynamodb:")} <= {
        f"dynamodb:{name}" for name in ("BatchGetItem", "GetItem", "Query", "Scan", "UpdateItem")
    }
    assert {a for a in allowed if a.startswith("sqs:")} == {
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:ReceiveMessage",
        "sqs:SendMessage",
    }
    assert {a for a in allowed if a.startswith("kinesis:")} == {"kinesis:PutRecords"}


def test_secrets_are_for_the_worker_alone_and_by_prefix(statements: list[PlacedStatement]) -> None:
    readers = {(stack, id_) for stack, id_, s in statements if "secretsmanager:GetSecretValue" in actions(s)}
    assert len(readers) == 1
    assert next(iter(readers))[1].startswith("WorkersTaskRole")


def test_the_widget_can_only_read(statements: list[PlacedStatement]) -> None:
    (work,) = [s for stack, _, s in statements if stack == "observability" and "dynamodb" in json.dumps(s["Action"])]
    assert actions(work) == ["dynamodb:Query"]


def test_each_role_is_assumed_by_one_service(assembly: Assembly) -> None:
    for role in assembly.of("AWS::IAM::Role"):
        (statement,) = role.properties["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Action"] == "sts:AssumeRole"
        assert isinstance(statement["Principal"]["Service"], str)


def test_managed_policies_are_not_used_beyond_the_one_of_the_gateway(assembly: Assembly) -> None:
    managed = [role.logical_id for role in assembly.of("AWS::IAM::Role") if "ManagedPolicyArns" in role.properties]
    assert managed == ["ApiCloudWatchRole73EC6FC4"]


def test_every_log_group_forgets(assembly: Assembly) -> None:
    assert {one.properties["RetentionInDays"] for one in assembly.of("AWS::Logs::LogGroup")} == {30}


def test_every_function_and_container_logs_to_a_group_of_ours(assembly: Assembly) -> None:
    groups = {(one.stack, one.logical_id) for one in assembly.of("AWS::Logs::LogGroup")}
    for function in assembly.of("AWS::Lambda::Function"):
        assert (function.stack, function.properties["LoggingConfig"]["LogGroup"]["Ref"]) in groups
    (container,) = assembly.one("AWS::ECS::TaskDefinition").properties["ContainerDefinitions"]
    assert ("fleet", container["LogConfiguration"]["Options"]["awslogs-group"]["Ref"]) in groups


def test_no_account_region_or_partition_is_written_down(assembly: Assembly) -> None:
    for stack, template in assembly.templates.items():
        written = json.dumps(template)
        assert not re.findall(r"(?<![0-9a-f])\d{12}(?![0-9a-f])", written), stack
        assert not re.findall(r"arn:aws[a-z-]*:", written), stack
        assert not re.findall(r"(?:us|eu|ap|sa|ca|me|af)-[a-z]+-\d", written), stack


def test_no_secret_and_no_custom_resource_is_in_the_templates(assembly: Assembly) -> None:
    types = {one.type for one in assembly.all()}
    assert not [
        type_ for type_ in types if type_.startswith(("AWS::SecretsManager", "Custom::", "AWS::CloudFormation::Custom"))
    ]


def test_everything_that_can_be_tagged_carries_the_name_of_the_application(assembly: Assembly) -> None:
    for one in assembly.of("AWS::DynamoDB::Table", "AWS::SQS::Queue", "AWS::Kinesis::Stream", "AWS::ECS::Service"):
        assert {"Key": "application", "Value": "websocket-fleet"} in one.properties["Tags"]


@pytest.mark.parametrize("stack", STACKS)
def test_the_outputs_are_the_contract(assembly: Assembly, stack: str) -> None:
    assert OUTPUTS[stack] <= assembly.outputs(stack).keys()


def test_two_deployments_can_live_in_one_account(synthesize: Synthesize) -> None:
    other = synthesize(name="second-fleet")
    assert "websocket-fleet" not in json.dumps(other.templates).replace("websocket-fleet/", "")


@pytest.fixture(scope="module")
def function_code(assembly: Assembly) -> Path:
    """The directory that the functions' code is zipped from."""
    manifest = json.loads(next(assembly.directory.glob("*-api.assets.json")).read_text())
    (path,) = [
        asset["source"]["path"] for asset in manifest["files"].values() if asset["displayName"] == "Function/Code"
    ]
    return assembly.directory / str(path)


@pytest.fixture(scope="module")
def image_context(assembly: Assembly) -> Path:
    """The directory that the worker's image is built from."""
    manifest = json.loads(next(assembly.directory.glob("*-fleet.assets.json")).read_text())
    (image,) = manifest["dockerImages"].values()
    return assembly.directory / str(image["source"]["directory"])


def test_all_functions_ship_the_same_code_and_nothing_but_our_packages(assembly: Assembly, function_code: Path) -> None:
    codes = {function.properties["Code"]["S3Key"] for function in assembly.of("AWS::Lambda::Function")}
    assert len(codes) == 1
    assert {path.name for path in function_code.iterdir()} == {"connections", "lambdas", "leases", "telemetry"}


def test_the_image_holds_what_the_worker_imports_and_nothing_else(image_context: Path) -> None:
    packages = {path.name for path in image_context.iterdir() if path.is_dir()}
    assert packages == {"connections", "leases", "telemetry", "worker"}
    copied = re.findall(r"^COPY (\w+) \1$", (image_context / "worker/Dockerfile").read_text(), flags=re.MULTILINE)
    assert set(copied) == packages


def test_functions_and_workers_share_their_modules_byte_for_byte(function_code: Path, image_context: Path) -> None:
    for package in ("connections", "leases", "telemetry"):
        assert contents(function_code / package) == contents(image_context / package) != {}


def contents(package: Path) -> dict[str, bytes]:
    return {str(path.relative_to(package)): path.read_bytes() for path in package.rglob("*.py")}


def test_every_handler_exists(assembly: Assembly, function_code: Path) -> None:
    for function in assembly.of("AWS::Lambda::Function"):
        module, _, name = function.properties["Handler"].rpartition(".")
        source = function_code / f"{module.replace('.', '/')}.py"
        assert re.search(rf"^(?:async )?def {name}\(|^{name}\b.* = ", source.read_text(), flags=re.MULTILINE), module


def test_the_health_check_exists(assembly: Assembly) -> None:
    (container,) = assembly.one("AWS::ECS::TaskDefinition").properties["ContainerDefinitions"]
    assert importlib.util.find_spec(container["HealthCheck"]["Command"][-1]) is not None


def test_infrastructure_imports_no_runtime_code() -> None:
    for source in ROOT.joinpath("infrastructure").rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", source.read_text(), flags=re.MULTILINE)
        assert not {"connections", "lambdas", "leases", "worker", "local"} & set(imported), source
