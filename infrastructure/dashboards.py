"""Two dashboards: is the service healthy, and if not, why. A metric that nobody plots is not worth emitting."""

from collections.abc import Sequence

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infrastructure.api import ApiStack
from infrastructure.data import DataStack
from infrastructure.fleet import FleetStack
from infrastructure.metrics import fleet_series
from infrastructure.settings import Settings
from telemetry import metrics
from telemetry.metrics import Metric

_ROW = 24
_MINUTE = Duration.minutes(1)
Curve = tuple[Metric, str]


def service_health(
    scope: Construct,
    *,
    settings: Settings,
    api: ApiStack,
    alarms: Sequence[cloudwatch.IAlarm],
    widget: lambda_.IFunction,
) -> cloudwatch.Dashboard:
    """What the owner of the service looks at: alarms, the fleet, what is wanted against what runs, outages."""

    def graph(title: str, *curves: Curve) -> cloudwatch.GraphWidget:
        return _graph(settings, title, curves)

    dashboard = cloudwatch.Dashboard(
        scope, "ServiceHealth", dashboard_name=settings.name, default_interval=Duration.hours(3)
    )
    dashboard.add_widgets(cloudwatch.AlarmStatusWidget(title="Alarms", alarms=list(alarms), width=_ROW, height=4))
    dashboard.add_widgets(
        cloudwatch.CustomWidget(
            title="Fleet", function_arn=widget.function_arn, update_on_refresh=True, width=_ROW, height=8
        )
    )
    dashboard.add_widgets(
        graph(
            "Connections: wanted and held",
            (metrics.CONNECTIONS_WANTED, "Maximum"),
            (metrics.CONNECTIONS_HELD, "Maximum"),
            (metrics.FLEET_CAPACITY, "Maximum"),
        ),
        graph(
            "Connections without an owner",
            (metrics.CONNECTIONS_PENDING, "Maximum"),
            (metrics.CONNECTIONS_UNOWNED, "Maximum"),
            (metrics.CONNECTIONS_PARKED, "Maximum"),
        ),
        graph("Longest wait for an owner", (metrics.OLDEST_UNOWNED_AGE, "Maximum")),
    )
    dashboard.add_widgets(
        graph("Outage by cause, p99", (metrics.OUTAGE, "p99")),
        graph("Failovers by cause", (metrics.OUTAGE, "SampleCount")),
        graph("Sessions declared dead by evidence", (metrics.SESSIONS_DECLARED_DEAD, "Sum")),
    )
    dashboard.add_widgets(
        graph("Messages", (metrics.MESSAGES_IN, "Sum"), (metrics.RECORDS_OUT, "Sum")),
        graph("Lost", (metrics.MESSAGES_DISCARDED, "Sum"), (metrics.CONNECTIONS_FAILED, "Sum")),
        graph("Sessions", (metrics.SESSIONS_LIVE, "Maximum"), (metrics.SESSIONS_DRAINING, "Maximum")),
    )
    dashboard.add_widgets(
        graph(
            "API",
            (metrics.CONNECTIONS_REQUESTED, "Sum"),
            (metrics.REQUESTS_REFUSED, "Sum"),
            (metrics.ENQUEUE_FAILURES, "Sum"),
        ),
        _plain(
            "API answers",
            api.api.metric_count(period=_MINUTE, statistic="SampleCount"),
            api.api.metric_client_error(period=_MINUTE, statistic="Sum"),
            api.api.metric_server_error(period=_MINUTE, statistic="Sum"),
        ),
        _plain(
            "API latency",
            *(api.api.metric_latency(period=_MINUTE, statistic=statistic) for statistic in ("p50", "p99")),
        ),
    )
    return dashboard


def deep_dive(
    scope: Construct, *, settings: Settings, data: DataStack, api: ApiStack, fleet: FleetStack
) -> cloudwatch.Dashboard:
    """What an engineer looks at: leases, sockets, output, processes, and the services under them."""

    def graph(title: str, *curves: Curve) -> cloudwatch.GraphWidget:
        return _graph(settings, title, curves)

    dashboard = cloudwatch.Dashboard(
        scope, "DeepDive", dashboard_name=f"{settings.name}-deep-dive", default_interval=Duration.hours(3)
    )
    _heading(dashboard, "Leases")
    dashboard.add_widgets(
        graph("Heartbeat age as a share of the self-fence time", (metrics.HEARTBEAT_AGE, "Maximum")),
        graph(
            "Heartbeats that were not acknowledged",
            (metrics.HEARTBEATS_UNKNOWN, "Sum"),
            (metrics.HEARTBEATS_LOST, "Sum"),
        ),
        graph(
            "Sessions on hold or back from the dead",
            (metrics.SELF_HOLDS, "Sum"),
            (metrics.DEAD_SESSIONS_RETURNED, "Sum"),
        ),
    )
    dashboard.add_widgets(
        graph("Claims", (metrics.CLAIMS, "Sum"), (metrics.CLAIM_CONFLICTS, "Sum")),
        graph("Hand-overs", (metrics.HAND_OVERS, "Sum"), (metrics.HAND_OVERS_FAILED, "Sum")),
        graph("Rows out of order", (metrics.ROWS_REPAIRED, "Sum"), (metrics.STRUCK_OUT, "Sum")),
    )
    _heading(dashboard, "Connections")
    dashboard.add_widgets(
        graph("Sockets opened and lost", (metrics.CONNECTS, "Sum"), (metrics.RECONNECTS, "Sum")),
        graph("Failed attempts by reason", (metrics.CONNECT_FAILURES, "Sum")),
        graph("Payload", (metrics.BYTES_IN, "Sum"), (metrics.BYTES_OUT, "Sum")),
    )
    _heading(dashboard, "Output")
    dashboard.add_widgets(
        graph("From message to stream", (metrics.SINK_LAG, "p50"), (metrics.SINK_LAG, "p99")),
        graph("Stream trouble", (metrics.SINK_RETRIES, "Sum"), (metrics.SINK_STALLS, "Sum")),
        graph("Buffered", (metrics.BUFFERED_BYTES, "Average"), (metrics.BUFFERED_BYTES, "Maximum")),
    )
    _heading(dashboard, "Worker processes")
    dashboard.add_widgets(
        graph("Load", (metrics.LOAD, "Minimum"), (metrics.LOAD, "Average"), (metrics.LOAD, "Maximum")),
        graph("Event loop lag", (metrics.LOOP_LAG, "p50"), (metrics.LOOP_LAG, "p99")),
        graph("Memory", (metrics.RESIDENT_MEMORY, "Average"), (metrics.RESIDENT_MEMORY, "Maximum")),
    )
    service = fleet.workers.service
    dashboard.add_widgets(
        graph("Open files", (metrics.OPEN_FILES, "Maximum")),
        graph("Crashes", (metrics.PROCESS_EXITS, "Sum")),
        _plain(
            "Tasks",
            service.metric_cpu_utilization(period=_MINUTE, statistic="Maximum"),
            service.metric_memory_utilization(period=_MINUTE, statistic="Maximum"),
        ),
    )
    _heading(dashboard, "Services")
    dashboard.add_widgets(
        _plain(
            "Table",
            data.table.metric_consumed_write_capacity_units(period=_MINUTE, statistic="Sum"),
            data.table.metric_consumed_read_capacity_units(period=_MINUTE, statistic="Sum"),
        ),
        _plain(
            "Assignment queue",
            data.queue.metric_approximate_number_of_messages_visible(period=_MINUTE, statistic="Maximum"),
            data.queue.metric_approximate_age_of_oldest_message(period=_MINUTE, statistic="Maximum"),
            data.dead_letters.metric_approximate_number_of_messages_visible(period=_MINUTE, statistic="Maximum"),
        ),
        _plain(
            "Functions",
            *(
                function.metric_duration(period=_MINUTE, statistic="p99", label=name)
                for name, function in {
                    "api": api.function,
                    "task_stopped": fleet.task_stopped,
                    "audit": fleet.audit,
                }.items()
            ),
        ),
    )
    return dashboard


def _graph(settings: Settings, title: str, curves: Sequence[Curve]) -> cloudwatch.GraphWidget:
    series = [one for metric, statistic in curves for one in fleet_series(settings, metric, statistic)]
    units = {metric.unit for metric, _ in curves}
    if len(units) != 1:
        raise ValueError(f"{title}: one axis cannot show {', '.join(sorted(units))}")
    return cloudwatch.GraphWidget(
        title=title,
        left=series,
        left_y_axis=cloudwatch.YAxisProps(min=0, label=units.pop().lower(), show_units=False),
        width=_ROW // 3,
        height=6,
    )


def _plain(title: str, *series: cloudwatch.IMetric) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(
        title=title,
        left=list(series),
        left_y_axis=cloudwatch.YAxisProps(min=0, show_units=False),
        width=_ROW // 3,
        height=6,
    )


def _heading(dashboard: cloudwatch.Dashboard, text: str) -> None:
    dashboard.add_widgets(cloudwatch.TextWidget(markdown=f"## {text}", width=_ROW, height=1))
