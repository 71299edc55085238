"""Settings from the command line, put into the templates and judged as a whole before anything starts."""

import logging
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from local.assembly import Assembly
from local.bridges import set_environment
from worker import settings as worker

LOG_LEVEL = "POWERTOOLS_LOG_LEVEL"
MADE_BY_THE_DEPLOYMENT = "(made by the deployment)"
"""Stands for the name of a table, queue or stream, which nobody knows before it is there."""


class SettingError(ValueError):
    """A setting that nobody has, that is malformed, or that breaks a rule. The message names it."""


def configured(assembly: Assembly, settings: Mapping[str, str], extra: Mapping[str, str]) -> Assembly:
    """The assembly with `settings` in the environment of its functions and containers.

    `extra` is what workers get beside it. Raises `SettingError`, with the message that a worker would end with.
    """
    stacks, found = [], set[str]()
    for stack in assembly.stacks:
        template, names = set_environment(stack.template, settings)
        stacks.append(replace(stack, template=template))
        found |= names
    if unknown := settings.keys() - found:
        known = {name for stack in assembly.stacks for name in _names(stack.template)}
        raise SettingError(
            f"{', '.join(sorted(unknown))}: there is no such setting, but {', '.join(sorted(known))} "
            f"and what else of a worker begins with {', '.join(worker.PREFIXES)}"
        )
    for stack in stacks:
        for environment in _containers(stack.template):
            _check(environment | dict(extra))
    return replace(assembly, stacks=stacks)


def _check(environment: Mapping[str, Any]) -> None:
    texts = {name: value if isinstance(value, str) else MADE_BY_THE_DEPLOYMENT for name, value in environment.items()}
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        worker.Settings.from_environment(texts, cpus=len(os.sched_getaffinity(0)), files=files)
    except worker.SettingsError as error:
        raise SettingError(str(error)) from error
    levels = logging.getLevelNamesMapping()
    if texts.get(LOG_LEVEL, "INFO") not in levels:
        raise SettingError(f"{LOG_LEVEL} must be one of {', '.join(levels)}, but is {texts[LOG_LEVEL]!r}")


def _names(template: Mapping[str, Any]) -> Iterator[str]:
    """What can be set: what the template itself has a value for."""
    for environment in (*_containers(template), *_functions(template)):
        yield from (name for name, value in environment.items() if isinstance(value, str))


def _containers(template: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for resource_ in template["Resources"].values():
        for container in resource_.get("Properties", {}).get("ContainerDefinitions", ()):
            yield {entry["Name"]: entry["Value"] for entry in container.get("Environment", ())}


def _functions(template: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for resource_ in template["Resources"].values():
        yield resource_.get("Properties", {}).get("Environment", {}).get("Variables", {})
