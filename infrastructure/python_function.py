"""A Lambda function of ours: one role with exact actions, one log group, our packages, third parties as a layer."""

import hashlib
import subprocess
import sys
from pathlib import Path

import jsii
from aws_cdk import AssetHashType, BundlingOptions, Duration, IgnoreMode, ILocalBundling, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infrastructure.logs import log_group
from infrastructure.settings import Architecture, Settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("connections", "lambdas", "leases", "telemetry")
REQUIREMENTS = ROOT / "lambdas" / "requirements.txt"
RUNTIME = lambda_.Runtime.PYTHON_3_14
"""The newest Python of Lambda; the worker's image uses the same."""
PYTHON_VERSION = RUNTIME.name.removeprefix("python")

_ARCHITECTURES = {
    Architecture.ARM64: lambda_.Architecture.ARM_64,
    Architecture.X86_64: lambda_.Architecture.X86_64,
}
_WHEEL_MACHINES = {Architecture.ARM64: "aarch64", Architecture.X86_64: "x86_64"}


class PythonFunction(lambda_.Function):
    """A function whose handler is `lambdas.<name>.handler.handler`."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        settings: Settings,
        name: str,
        description: str,
        environment: dict[str, str],
        policy: list[iam.PolicyStatement],
        timeout: Duration,
        memory_mib: int = 512,
    ) -> None:
        logs_of_function = log_group(scope, f"{id_}Logs", settings)
        role = iam.Role(
            scope,
            f"{id_}Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            inline_policies={
                "Logs": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(
                            actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                            resources=[logs_of_function.log_group_arn],
                        )
                    ]
                ),
                "Work": iam.PolicyDocument(statements=policy),
            },
        )
        super().__init__(
            scope,
            id_,
            description=description,
            runtime=RUNTIME,
            architecture=_ARCHITECTURES[settings.architecture],
            handler=f"lambdas.{name}.handler.handler",
            code=_own_packages(),
            layers=[_dependencies(Stack.of(scope), settings.architecture)],
            environment=environment,
            role=role,
            log_group=logs_of_function,
            timeout=timeout,
            memory_size=memory_mib,
        )


def _own_packages() -> lambda_.Code:
    """Our packages as they are in this folder, without anything else of it."""
    return lambda_.Code.from_asset(
        str(ROOT),
        exclude=["*", *(f"!{package}" for package in PACKAGES), "**/__pycache__", "**/requirements.txt"],
        ignore_mode=IgnoreMode.DOCKER,
    )


def _dependencies(stack: Stack, architecture: Architecture) -> lambda_.ILayerVersion:
    """The stack's one layer with the third-party packages.

    Each stack has its own: with a layer of another stack, a change of the dependencies would leave this stack's
    template unchanged, and so its functions on the old layer.
    """
    existing = stack.node.try_find_child("Dependencies")
    if existing is not None:
        return existing  # type: ignore[return-value]
    inputs = REQUIREMENTS.read_bytes() + f"{architecture} {PYTHON_VERSION}".encode()
    return lambda_.LayerVersion(
        stack,
        "Dependencies",
        description="Third-party packages of lambdas/requirements.txt",
        compatible_runtimes=[RUNTIME],
        compatible_architectures=[_ARCHITECTURES[architecture]],
        removal_policy=RemovalPolicy.DESTROY,
        code=lambda_.Code.from_asset(
            str(REQUIREMENTS.parent),
            exclude=["*", "!requirements.txt"],
            asset_hash_type=AssetHashType.CUSTOM,
            asset_hash=hashlib.sha256(inputs).hexdigest(),
            bundling=BundlingOptions(
                image=RUNTIME.bundling_image,
                local=PipBundling(architecture),  # type: ignore[arg-type]  # jsii calls it with one options object
            ),
        ),
    )


@jsii.implements(ILocalBundling)
class PipBundling:
    """Installs the wheels for the functions' platform with pip on this machine: no docker, whatever this machine is."""

    def __init__(self, architecture: Architecture) -> None:
        self._machine = _WHEEL_MACHINES[architecture]

    def try_bundle(self, output_dir: str, _options: object) -> bool:
        """Fill `output_dir`; raises RuntimeError if pip fails, for example because a package has no such wheel."""
        platforms = [
            f"--platform={tag}_{self._machine}" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
        ]
        pip = subprocess.run(  # noqa: S603 - a fixed command with our own constants
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
                *("--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON_VERSION}", *platforms),
                *(f"--requirement={REQUIREMENTS}", f"--target={output_dir}/python"),
            ],
            capture_output=True,
            text=True,
        )
        if pip.returncode != 0:
            raise RuntimeError(f"pip could not install {REQUIREMENTS} for {self._machine}:\n{pip.stderr}")
        return True
