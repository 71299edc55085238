"""Deploys an assembly to the emulator as the CDK would to AWS: assets into buckets, then stack after stack."""

import io
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local.assembly import Assembly, FileAsset, StackTemplate
from local.aws import ACCOUNT, REGION, Aws
from local.bridges import apply_dropped_properties, bridge

TEMPLATES = "templates"
BOOTSTRAP_VERSION = "30"
"""What `cdk bootstrap` notes in the account; every template checks that it is recent enough."""
DEPLOY_SECONDS = 60


class DeploymentError(RuntimeError):
    """A stack was not created. The message has the reasons that the emulator gave."""


def deploy(aws: Aws, assembly: Assembly) -> dict[str, str]:
    """Create all stacks; returns the outputs of all. Raises `DeploymentError`."""
    _publish(aws, [asset for stack in assembly.stacks for asset in stack.assets])
    outputs: dict[str, str] = {}
    for stack in assembly.stacks:
        outputs |= _create(aws, stack, bridge(stack.template))
    return outputs


def _create(aws: Aws, stack: StackTemplate, template: Mapping[str, Any]) -> dict[str, str]:
    cloudformation = aws.session.client("cloudformation", endpoint_url=aws.endpoint, config=aws.config)
    s3 = aws.session.client("s3", endpoint_url=aws.endpoint, config=aws.config)
    _note_bootstrap_version(aws, template)
    key = f"{stack.name}.json"
    s3.put_object(Bucket=TEMPLATES, Key=key, Body=json.dumps(template).encode())
    cloudformation.create_stack(
        StackName=stack.name,
        TemplateURL=f"{aws.endpoint}/{TEMPLATES}/{key}",
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"],
        OnFailure="DO_NOTHING",
    )
    deadline = time.monotonic() + DEPLOY_SECONDS
    while (description := cloudformation.describe_stacks(StackName=stack.name)["Stacks"][0])[
        "StackStatus"
    ] == "CREATE_IN_PROGRESS" and time.monotonic() < deadline:
        time.sleep(0.05)
    if description["StackStatus"] != "CREATE_COMPLETE":
        events = cloudformation.describe_stack_events(StackName=stack.name)["StackEvents"]
        reasons = [
            f"{event['LogicalResourceId']} ({event['ResourceType']}): {event['ResourceStatusReason']}"
            for event in events
            if event.get("ResourceStatus") == "CREATE_FAILED" and "ResourceStatusReason" in event
        ]
        raise DeploymentError(f"{stack.name} is {description['StackStatus']}: {'; '.join(reasons)}")
    summaries = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack.name)
    physical_ids = {
        summary["LogicalResourceId"]: summary["PhysicalResourceId"]
        for page in summaries
        for summary in page["StackResourceSummaries"]
    }
    if missing := template["Resources"].keys() - physical_ids.keys():
        raise DeploymentError(f"{stack.name} was created without {', '.join(sorted(missing))}")
    apply_dropped_properties(aws, template, physical_ids)
    return {output["OutputKey"]: output["OutputValue"] for output in description.get("Outputs", ())}


def _publish(aws: Aws, assets: Sequence[FileAsset]) -> None:
    s3 = aws.session.client("s3", endpoint_url=aws.endpoint, config=aws.config)
    s3.create_bucket(Bucket=TEMPLATES)
    names = {asset: _resolve(asset.bucket) for asset in assets}
    for bucket in sorted(set(names.values())):
        s3.create_bucket(Bucket=bucket)
    bodies: dict[Path, bytes] = {}
    for asset, bucket in names.items():
        if asset.source not in bodies:
            bodies[asset.source] = _zipped(asset.source) if asset.is_folder else asset.source.read_bytes()
        s3.put_object(Bucket=bucket, Key=_resolve(asset.key), Body=bodies[asset.source])


def _zipped(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return buffer.getvalue()


def _note_bootstrap_version(aws: Aws, template: Mapping[str, Any]) -> None:
    parameter = template.get("Parameters", {}).get("BootstrapVersion")
    if parameter is not None:
        ssm = aws.session.client("ssm", endpoint_url=aws.endpoint, config=aws.config)
        ssm.put_parameter(Name=parameter["Default"], Value=BOOTSTRAP_VERSION, Type="String", Overwrite=True)


def _resolve(name: str) -> str:
    return (
        name.replace("${AWS::AccountId}", ACCOUNT).replace("${AWS::Region}", REGION).replace("${AWS::Partition}", "aws")
    )
