"""Everything that differs between the template as it goes to AWS and as it goes to the emulator. All of it is here.

Anything that the emulator refuses and that is not named here fails the deployment, so that drift is seen.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from local.aws import Aws
from worker.settings import PREFIXES

Template = Mapping[str, Any]
Resource = Mapping[str, Any]

LEFT_OUT: Mapping[str, str] = {
    "AWS::ApplicationAutoScaling::ScalableTarget": "refused; the number of tasks is an option of `make local`",
    "AWS::ApplicationAutoScaling::ScalingPolicy": "refused, as above",
    "AWS::EC2::FlowLog": "refused; there is no network",
    "AWS::Lambda::LayerVersion": "functions run in this virtual environment, which has the packages of the layer",
    "AWS::Logs::QueryDefinition": "refused; nobody reads the logs there",
}
"""Kinds of resources that are left out, and why."""


class DanglingReferenceError(ValueError):
    """What was left out is needed by something that was not."""


class NotAppliedError(RuntimeError):
    """A property of the template that the emulator drops did not hold after it was set directly."""


def bridge(template: Template) -> dict[str, Any]:
    """The template for the emulator; raises `DanglingReferenceError`."""
    resources: Mapping[str, Resource] = template["Resources"]
    kept = {name: resource for name, resource in resources.items() if not _left_out(resource)}
    gone = resources.keys() - kept.keys()
    bridged = {
        **template,
        "Resources": {name: _without_dependencies(_without_layers(resource), gone) for name, resource in kept.items()},
        "Outputs": {
            name: output for name, output in template.get("Outputs", {}).items() if not gone & set(_references(output))
        },
    }
    for name, resource in bridged["Resources"].items():
        if missing := gone & set(_references(resource)):
            raise DanglingReferenceError(
                f"{name} ({resource['Type']}) needs {', '.join(sorted(missing))}, which is left out"
            )
    return bridged


def set_environment(template: Template, settings: Mapping[str, str]) -> tuple[dict[str, Any], set[str]]:
    """The template with other values in the environment of its functions and containers, where they have the name.

    A setting of the workers that the template leaves at its default is added to the containers. What the deployment
    makes (the name of the table, say) is nobody's to set. Also returns the names that were set.
    """
    changed = json.loads(json.dumps(template))
    found: set[str] = set()
    for resource in changed["Resources"].values():
        properties = resource.get("Properties", {})
        variables = properties.get("Environment", {}).get("Variables", {})
        present = {name for name in settings if isinstance(variables.get(name), str)}
        variables.update({name: settings[name] for name in present})
        found |= present
        for container in properties.get("ContainerDefinitions", ()):
            values = {entry["Name"]: entry["Value"] for entry in container.get("Environment", ())}
            present = {
                name
                for name in settings
                if isinstance(values.get(name), str) or (name not in values and name.startswith(PREFIXES))
            }
            values.update({name: settings[name] for name in present})
            container["Environment"] = [{"Name": name, "Value": value} for name, value in values.items()]
            found |= present
    return changed, found


def apply_dropped_properties(aws: Aws, template: Template, physical_ids: Mapping[str, str]) -> None:
    """Set what the emulator's CloudFormation silently drops, and prove that it holds; raises `NotAppliedError`."""
    for name, resource in template["Resources"].items():
        for kind, property_, apply in _DROPPED:
            if resource["Type"] == kind and property_ in resource.get("Properties", {}):
                wanted = resource["Properties"][property_]
                if not apply(aws, physical_ids[name], wanted):
                    raise NotAppliedError(f"{property_} of {name} is not {wanted} in the emulator")


def _time_to_live(aws: Aws, table: str, wanted: Mapping[str, Any]) -> bool:
    dynamodb = aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config)
    dynamodb.update_time_to_live(
        TableName=table,
        TimeToLiveSpecification={"AttributeName": wanted["AttributeName"], "Enabled": wanted["Enabled"]},
    )
    holds = dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    return holds.get("AttributeName") == wanted["AttributeName"] and holds["TimeToLiveStatus"] == "ENABLED"


def _point_in_time_recovery(aws: Aws, table: str, wanted: Mapping[str, Any]) -> bool:
    dynamodb = aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config)
    enabled = wanted["PointInTimeRecoveryEnabled"]
    dynamodb.update_continuous_backups(
        TableName=table, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": enabled}
    )
    holds = dynamodb.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]
    status = holds["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"]
    return status == ("ENABLED" if enabled else "DISABLED")


def _reserved_concurrency(aws: Aws, function: str, wanted: int) -> bool:
    lambda_ = aws.session.client("lambda", endpoint_url=aws.endpoint, config=aws.config)
    lambda_.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=wanted)
    return lambda_.get_function_concurrency(FunctionName=function)["ReservedConcurrentExecutions"] == wanted


_DROPPED: tuple[tuple[str, str, Callable[[Aws, str, Any], bool]], ...] = (
    ("AWS::DynamoDB::Table", "TimeToLiveSpecification", _time_to_live),
    ("AWS::DynamoDB::Table", "PointInTimeRecoverySpecification", _point_in_time_recovery),
    ("AWS::Lambda::Function", "ReservedConcurrentExecutions", _reserved_concurrency),
)


def _left_out(resource: Resource) -> bool:
    has_metric_math = resource["Type"] == "AWS::CloudWatch::Alarm" and "Metrics" in resource["Properties"]
    return resource["Type"] in LEFT_OUT or has_metric_math


def _without_layers(resource: Resource) -> Resource:
    if resource["Type"] != "AWS::Lambda::Function":
        return resource
    properties = {name: value for name, value in resource["Properties"].items() if name != "Layers"}
    return {**resource, "Properties": properties}


def _without_dependencies(resource: Resource, gone: set[str]) -> Resource:
    if "DependsOn" not in resource:
        return resource
    named = resource["DependsOn"]
    wanted = [named] if isinstance(named, str) else named
    return {**resource, "DependsOn": [name for name in wanted if name not in gone]}


def _references(node: Any) -> Iterator[str]:
    """Logical names that a part of a template refers to."""
    match node:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            yield name
        case Mapping():
            for value in node.values():
                yield from _references(value)
        case list():
            for value in node:
                yield from _references(value)
        case _:
            return
