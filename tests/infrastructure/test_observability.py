"""Observability stack: every metric is plotted, every alarm tells somebody, and that somebody may be told."""

import json
import re
from typing import Any

import pytest

from telemetry import metrics
from telemetry.metrics import METRICS, NAMESPACE, SERVICE_DIMENSION, Emitter, Metric
from tests.infrastructure.conftest import ROOT, Assembly, Properties, Synthesize

EMITTERS = {
    Emitter.WORKER: "worker",
    Emitter.SUPERVISOR: "worker",
    Emitter.API: "lambdas/api",
    Emitter.TASK_STOPPED: "lambdas/task_stopped",
    Emitter.AUDIT: "lambdas/audit",
}

Series = tuple[str, tuple[tuple[str, str], ...]]


def text(value: Any) -> str:
    """A CloudFormation value as text, with a word in place of each reference."""
    if isinstance(value, dict):
        (arguments,) = value.values()
        return "".join(map(text, arguments[1])) if "Fn::Join" in value else "reference"
    return str(value)


@pytest.fixture(scope="module")
def dashboards(assembly: Assembly) -> list[Properties]:
    return [json.loads(text(one.properties["DashboardBody"])) for one in assembly.of("AWS::CloudWatch::Dashboard")]


@pytest.fixture(scope="module")
def plotted(dashboards: list[Properties]) -> set[Series]:
    """(name, dimensions) of every series of ours on a dashboard."""
    return {
        (series[1], tuple(zip(series[2:-1:2], series[3:-1:2], strict=True)))
        for dashboard in dashboards
        for widget in dashboard["widgets"]
        for series in widget["properties"].get("metrics", [])
        if series[0] == NAMESPACE
    }


@pytest.fixture(scope="module")
def alarms(assembly: Assembly) -> list[Properties]:
    return [one.properties for one in assembly.of("AWS::CloudWatch::Alarm")]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_plotted_in_all_its_series(plotted: set[Series], metric: Metric) -> None:
    series = {tuple(sorted(dimensions)) for name, dimensions in plotted if name == metric.name}
    values = (
        [()] if metric.dimension is None else [((metric.dimension.name, value),) for value in metric.dimension.values]
    )
    assert series == {tuple(sorted(((SERVICE_DIMENSION, "websocket-fleet"), *value))) for value in values}


def test_only_defined_metrics_are_plotted_or_watched(plotted: set[Series], alarms: list[Properties]) -> None:
    watched = {alarm["MetricName"] for alarm in alarms if alarm.get("Namespace") == NAMESPACE}
    assert watched
    assert {name for name, _ in plotted} | watched <= {metric.name for metric in METRICS}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_emitted_by_each_part_that_is_said_to(metric: Metric) -> None:
    (constant,) = [name for name, value in vars(metrics).items() if value is metric]
    for emitter in metric.emitters:
        sources = ROOT.joinpath(EMITTERS[emitter]).rglob("*.py")
        used = rf"(metrics\.|import (\w+, )*|^    |[(\[, ]){constant}\b"
        assert any(
            "telemetry" in (text := source.read_text()) and re.search(used, text, re.MULTILINE) for source in sources
        ), emitter


def test_metric_names_are_unique_and_explained() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.doc.endswith(".") and metric.emitters for metric in METRICS)


def test_the_number_of_series_is_small_and_fixed() -> None:
    assert sum(1 if metric.dimension is None else len(metric.dimension.values) for metric in METRICS) <= 75


def test_an_alarm_watches_a_series_that_is_emitted(alarms: list[Properties]) -> None:
    by_name = {metric.name: metric for metric in METRICS}
    for alarm in alarms:
        if alarm["Namespace"] == NAMESPACE:
            assert by_name[alarm["MetricName"]].dimension is None
            assert alarm["Dimensions"] == [{"Name": SERVICE_DIMENSION, "Value": "websocket-fleet"}]


def test_totals_are_not_summed_over_time(alarms: list[Properties]) -> None:
    gauges = {metric.name for metric in METRICS if metric.doc.startswith("Gauge")} | {
        metrics.SESSIONS_LIVE.name,
        metrics.CONNECTIONS_PENDING.name,
        metrics.OLDEST_UNOWNED_AGE.name,
    }
    assert not [alarm for alarm in alarms if alarm["MetricName"] in gauges and alarm.get("Statistic") == "Sum"]


def test_every_alarm_tells_the_topic_and_says_what_silence_means(assembly: Assembly, alarms: list[Properties]) -> None:
    topic = {"Ref": assembly.one("AWS::SNS::Topic").logical_id}
    for alarm in alarms:
        assert alarm["AlarmActions"] == [topic]
        assert alarm["OKActions"] == [topic]
        assert alarm["TreatMissingData"] in {"breaching", "notBreaching"}


def test_a_fleet_that_nobody_counts_is_an_alarm(alarms: list[Properties]) -> None:
    (alarm,) = [alarm for alarm in alarms if alarm["MetricName"] == metrics.SESSIONS_LIVE.name]
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["Threshold"] == 2


def test_every_alarm_links_a_runbook_of_its_own(alarms: list[Properties]) -> None:
    links = [re.findall(r"Runbook: docs/runbooks.md#(\S+)$", alarm["AlarmDescription"]) for alarm in alarms]
    assert all(len(link) == 1 for link in links)
    assert len({link[0] for link in links}) == len(alarms)


def test_every_runbook_exists(alarms: list[Properties]) -> None:
    headings = re.findall(r"^#+ (\S+)$", ROOT.joinpath("docs/runbooks.md").read_text(), flags=re.MULTILINE)
    anchors = {heading.lower() for heading in headings}
    missing = {alarm["AlarmDescription"].rpartition("#")[2] for alarm in alarms} - anchors
    assert not missing


def test_cloudwatch_and_events_may_publish_to_the_topic(assembly: Assembly) -> None:
    topic = {"Ref": assembly.one("AWS::SNS::Topic").logical_id}
    policy = assembly.one("AWS::SNS::TopicPolicy").properties
    assert policy["Topics"] == [topic]
    allowed = set()
    for statement in policy["PolicyDocument"]["Statement"]:
        if statement["Effect"] == "Allow":
            assert statement["Action"] == "sns:Publish"
            assert statement["Resource"] == topic
            assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
            services = statement["Principal"]["Service"]
            allowed |= {services} if isinstance(services, str) else set(services)
    assert allowed == {"cloudwatch.amazonaws.com", "events.amazonaws.com"}
    # A topic under a key of ours would need a key policy for both publishers as well.
    assert "KmsMasterKeyId" not in assembly.one("AWS::SNS::Topic").properties


def test_somebody_can_be_told_by_mail(synthesize: Synthesize) -> None:
    subscription = synthesize(alarmEmail="on-call@example.org").one("AWS::SNS::Subscription").properties
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "on-call@example.org")


def test_a_deployment_that_was_rolled_back_is_told(assembly: Assembly) -> None:
    rule = assembly.one("AWS::Events::Rule", stack="observability").properties
    assert rule["EventPattern"]["detail"] == {"eventName": ["SERVICE_DEPLOYMENT_FAILED"]}
    assert rule["Targets"][0]["Arn"] == {"Ref": assembly.one("AWS::SNS::Topic").logical_id}


def test_the_first_dashboard_shows_alarms_and_the_live_fleet(dashboards: list[Properties]) -> None:
    health = next(one for one in dashboards if any(widget["type"] == "custom" for widget in one["widgets"]))
    assert health["widgets"][0]["type"] == "alarm"
    assert len(health["widgets"][0]["properties"]["alarms"]) >= 20


def test_saved_queries_ask_every_part(assembly: Assembly) -> None:
    queries = assembly.of("AWS::Logs::QueryDefinition")
    assert {query.properties["Name"].partition("/")[0] for query in queries} == {"websocket-fleet"}
    assert max(len(query.properties["LogGroupNames"]) for query in queries) == 5
