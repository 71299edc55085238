"""The scaling policy of the template against a day of load: `python -m bench.scaling [--target PERCENT ...]`.

Minimum, maximum, target and cool-downs are read from the synthesized template, the size of a task from `cdk.json`.
Prints JSON, and a table of the template's policy beside others. Target tracking acts on a metric of one minute by two
alarms (Application Auto Scaling User Guide, "How target tracking scaling works"): out in proportion when three minutes
in a row are above the target, in when fifteen minutes in a row are below nine tenths of it.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from infrastructure.settings import Settings, load
from local import assembly

ROOT = Path(__file__).resolve().parent.parent
DAY = 24 * 60
HIGH_MINUTES, LOW_MINUTES, LOW_SHARE = 3, 15, 0.9
METRIC_MINUTES = 1
"""How late a minute's value is there."""
START_MINUTES = 2
"""From the decision to a task that takes connections: placement, image, start. An assumption."""
SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the template says. Cool-downs in minutes."""

    minimum: int
    maximum: int
    target: float
    out_cooldown: float
    in_cooldown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What came of a day."""

    load: str
    target: float
    in_cooldown: float
    pending_minutes: int
    """Minutes in which connections waited for room."""
    most_pending: int
    task_hours: float
    mean_load: float
    """Percent."""
    changes: int
    moves: int
    """Connections moved because tasks came or went."""


def template_policy() -> Policy:
    """The policy as it is synthesized."""
    resources = [
        resource
        for stack in assembly.load(assembly.synthesize()).stacks
        for resource in stack.template["Resources"].values()
    ]
    target = _one(resources, "AWS::ApplicationAutoScaling::ScalableTarget")
    tracking = _one(resources, "AWS::ApplicationAutoScaling::ScalingPolicy")["TargetTrackingScalingPolicyConfiguration"]
    return Policy(
        minimum=target["MinCapacity"],
        maximum=target["MaxCapacity"],
        target=tracking["TargetValue"],
        out_cooldown=tracking["ScaleOutCooldown"] / 60,
        in_cooldown=tracking["ScaleInCooldown"] / 60,
    )


def _one(resources: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    (found,) = (resource["Properties"] for resource in resources if resource["Type"] == kind)
    return dict(found)


def loads(capacity: int) -> Mapping[str, Sequence[int]]:
    """Wanted connections of each minute, by the kind of day."""
    rng = Random(SEED)
    swing = [
        round(capacity * (4 - 3 * math.cos(2 * math.pi * minute / DAY)) * rng.uniform(0.97, 1.03))
        for minute in range(DAY)
    ]
    opening = [capacity * (6 if 9 * 60 <= minute < 17 * 60 else 1) for minute in range(DAY)]
    saw = [round(capacity * (3 + (minute // 30) % 2)) for minute in range(DAY)]
    return {"swing": swing, "opening": opening, "every half hour": saw}


def live(policy: Policy, capacity: int, name: str, wanted: Sequence[int]) -> Day:
    """One day under a policy."""
    serving = desired = max(policy.minimum, math.ceil(100 * wanted[0] / capacity / policy.target))
    arrivals: dict[int, int] = {}
    seen: list[float] = []
    out_at = in_at = -math.inf
    pending: list[int] = []
    hours = loads_ = moves = 0.0
    changes = 0
    for minute, demand in enumerate(wanted):
        if came := arrivals.pop(minute, 0):
            moves += min(demand, serving * capacity) * came / (serving + came)
            serving += came
        held = min(demand, serving * capacity)
        seen.append(100 * held / (serving * capacity))
        pending.append(demand - held)
        hours += desired / 60
        loads_ += seen[-1]
        known = seen[: len(seen) - METRIC_MINUTES]
        high = len(known) >= HIGH_MINUTES and min(known[-HIGH_MINUTES:]) > policy.target
        low = len(known) >= LOW_MINUTES and max(known[-LOW_MINUTES:]) < LOW_SHARE * policy.target
        proposed = math.ceil(serving * known[-1] / policy.target) if known else desired
        if high and minute - out_at >= policy.out_cooldown and desired < (more := min(policy.maximum, proposed)):
            arrivals[minute + START_MINUTES] = more - desired
            desired, out_at, changes = more, minute, changes + 1
        elif low and not arrivals and minute - max(in_at, out_at) >= policy.in_cooldown:
            fewer = max(policy.minimum, proposed)
            if fewer < desired:
                moves += held * (desired - fewer) / desired
                serving = desired = fewer
                in_at, changes = minute, changes + 1
    return Day(
        load=name,
        target=policy.target,
        in_cooldown=policy.in_cooldown,
        pending_minutes=sum(count > 0 for count in pending),
        most_pending=max(pending),
        task_hours=round(hours, 1),
        mean_load=round(loads_ / len(wanted), 1),
        changes=changes,
        moves=round(moves),
    )


def days(policy: Policy, settings: Settings, targets: Sequence[float]) -> Iterator[Day]:
    """Each kind of day under the template's policy, and under others that differ in target and patience."""
    capacity = settings.worker_processes * settings.worker_capacity
    for name, wanted in loads(capacity).items():
        for target in targets:
            for patience in sorted({15.0, policy.in_cooldown, 60.0, 120.0}):
                yield live(replace(policy, target=target, in_cooldown=patience), capacity, name, wanted)


def table(policy: Policy, found: Sequence[Day]) -> str:
    """For people: the template's own lines are marked."""
    names = ("day", "target %", "in after min", "min with pending", "most pending", "task hours", "mean load %")
    lines = [f"| {' | '.join((*names, 'changes', 'moves'))} |", "|---|---|---|---|---|---|---|---|---|"]
    for day in found:
        own = " (template)" if (day.target, day.in_cooldown) == (policy.target, policy.in_cooldown) else ""
        lines.append(
            f"| {day.load}{own} | {day.target:g} | {day.in_cooldown:g} | {day.pending_minutes} | {day.most_pending} "
            f"| {day.task_hours:g} | {day.mean_load:g} | {day.changes} | {day.moves} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=float, action="append", default=[])
    policy = template_policy()
    targets = sorted({45.0, policy.target, 75.0, *parser.parse_args().target})
    settings = load(json.loads((ROOT / "cdk.json").read_text())["context"])
    found = list(days(policy, settings, targets))
    print(json.dumps({"policy": asdict(policy), "days": list(map(asdict, found))}))
    print(table(policy, found))


if __name__ == "__main__":
    main()
