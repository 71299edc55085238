"""The alarms: each says what it means and where its runbook is, and tells the topic."""

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

from infrastructure.api import ApiStack
from infrastructure.data import DataStack
from infrastructure.fleet import FleetStack
from infrastructure.metrics import fleet_metric
from infrastructure.settings import OPEN_FILES, Settings
from telemetry import metrics

_ABOVE = cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD
_BELOW = cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD
_FINE = cloudwatch.TreatMissingData.NOT_BREACHING
_BAD = cloudwatch.TreatMissingData.BREACHING


@dataclass(frozen=True, slots=True)
class Rule:
    """Alarm `name` when `metric` is beyond `threshold` in `minutes` of the last `window` minutes."""

    name: str
    meaning: str
    metric: cloudwatch.Metric
    threshold: float
    minutes: int = 1
    window: int = 1
    comparison: cloudwatch.ComparisonOperator = _ABOVE
    missing: cloudwatch.TreatMissingData = _FINE


class Alarms(Construct):
    """One CloudWatch alarm for each rule, all with the same action."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        settings: Settings,
        data: DataStack,
        api: ApiStack,
        fleet: FleetStack,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, id_)
        self.alarms: list[cloudwatch.IAlarm] = []
        action = actions.SnsAction(topic)
        for rule in (*_fleet_rules(settings), *_service_rules(data, api, fleet)):
            alarm = cloudwatch.Alarm(
                self,
                rule.name,
                alarm_name=f"{settings.name}-{rule.name}",
                alarm_description=f"{rule.meaning} Runbook: {settings.runbook_url}#{rule.name.lower()}",
                metric=rule.metric,
                threshold=rule.threshold,
                comparison_operator=rule.comparison,
                datapoints_to_alarm=rule.minutes,
                evaluation_periods=rule.window,
                treat_missing_data=rule.missing,
            )
            alarm.add_alarm_action(action)
            alarm.add_ok_action(action)
            self.alarms.append(alarm)


def _fleet_rules(settings: Settings) -> Sequence[Rule]:
    def fleet(metric: metrics.Metric, statistic: str) -> cloudwatch.Metric:
        return fleet_metric(settings, metric, statistic)

    return (
        Rule(
            "UnownedTooLong",
            "A connection that should run has had no live owner for over a minute.",
            fleet(metrics.OLDEST_UNOWNED_AGE, "Maximum"),
            threshold=60,
            minutes=2,
            window=3,
        ),
        Rule(
            "NoCapacity",
            "Connections have waited for room in the fleet for ten minutes.",
            fleet(metrics.CONNECTIONS_PENDING, "Minimum"),
            threshold=0,
            minutes=10,
            window=10,
        ),
        Rule(
            "TooFewSessions",
            "Fewer worker processes are alive than the service's minimum, or nobody counts them.",
            fleet(metrics.SESSIONS_LIVE, "Minimum"),
            threshold=settings.minimum_tasks * settings.worker_processes,
            minutes=5,
            window=5,
            comparison=_BELOW,
            missing=_BAD,
        ),
        Rule(
            "RowsRepaired",
            "The audit put rows right that every worker had missed: the sweeps do not do their work.",
            fleet(metrics.ROWS_REPAIRED, "Sum"),
            threshold=0,
            minutes=3,
            window=5,
        ),
        Rule(
            "DeadSessionReturned",
            "A session that was declared dead came back: a frozen worker, or a wrong judgement.",
            fleet(metrics.DEAD_SESSIONS_RETURNED, "Sum"),
            threshold=0,
        ),
        Rule(
            "HeartbeatLate",
            "A worker used up most of the time after which it stops emitting.",
            fleet(metrics.HEARTBEAT_AGE, "Maximum"),
            threshold=80,
            minutes=3,
            window=5,
        ),
        Rule(
            "SelfHold",
            "A worker passed its deadline and held its output back: the table did not answer it.",
            fleet(metrics.SELF_HOLDS, "Sum"),
            threshold=0,
        ),
        Rule(
            "ProcessCrashed",
            "A worker process ended without being asked to.",
            fleet(metrics.PROCESS_EXITS, "Sum"),
            threshold=0,
        ),
        Rule(
            "StruckOut",
            "A connection was parked because each worker that ran it crashed.",
            fleet(metrics.STRUCK_OUT, "Sum"),
            threshold=0,
        ),
        Rule(
            "ReconnectStorm",
            "More connections than one worker holds were lost by their upstream servers in one minute.",
            fleet(metrics.RECONNECTS, "Sum"),
            threshold=settings.worker_capacity,
        ),
        Rule(
            "MessagesDiscarded",
            "Messages that had been received were never emitted.",
            fleet(metrics.MESSAGES_DISCARDED, "Sum"),
            threshold=0,
        ),
        Rule(
            "SinkSlow",
            "Records reach the stream over ten seconds after their message arrived.",
            fleet(metrics.SINK_LAG, "p99"),
            threshold=10_000,
            minutes=3,
            window=5,
        ),
        Rule(
            "LoopLag",
            "Event loops run their timers late: a worker is overloaded, or something blocks its loop.",
            fleet(metrics.LOOP_LAG, "p99"),
            threshold=250,
            minutes=5,
            window=5,
        ),
        Rule(
            "OpenFiles",
            "A worker process has used nine tenths of its file descriptors.",
            fleet(metrics.OPEN_FILES, "Maximum"),
            threshold=0.9 * OPEN_FILES,
        ),
        Rule(
            "EnqueueFailed",
            "Rows were written whose assignments could not be queued; they wait for a sweep.",
            fleet(metrics.ENQUEUE_FAILURES, "Sum"),
            threshold=0,
            minutes=3,
            window=5,
        ),
    )


def _service_rules(data: DataStack, api: ApiStack, fleet: FleetStack) -> Sequence[Rule]:
    minute = Duration.minutes(1)
    functions = {"Api": api.function, "TaskStopped": fleet.task_stopped, "Audit": fleet.audit}
    return (
        Rule(
            "DeadLetters",
            "An assignment was received twenty times and never settled.",
            data.dead_letters.metric_approximate_number_of_messages_visible(period=minute, statistic="Maximum"),
            threshold=0,
        ),
        Rule(
            "AssignmentsOld",
            "The oldest assignment has waited five minutes: no worker has room, or none polls.",
            data.queue.metric_approximate_age_of_oldest_message(period=minute, statistic="Maximum"),
            threshold=300,
            minutes=3,
            window=3,
        ),
        Rule(
            "ApiErrors",
            "The API answered with 5XX.",
            api.api.metric_server_error(period=minute, statistic="Sum"),
            threshold=0,
            minutes=3,
            window=5,
        ),
        *(
            Rule(
                f"{name}FunctionErrors",
                f"The function `{name}` failed.",
                function.metric_errors(period=minute, statistic="Sum"),
                threshold=0,
                minutes=3,
                window=5,
            )
            for name, function in functions.items()
        ),
        *(
            Rule(
                f"Table{kind}Throttled",
                f"DynamoDB throttled {kind.lower()}s of the table or its index.",
                data.table.metric(f"{kind}ThrottleEvents", period=minute, statistic="Sum"),
                threshold=0,
                minutes=3,
                window=5,
            )
            for kind in ("Read", "Write")
        ),
        Rule(
            "StreamThrottled",
            "The output stream refused records: it is growing too fast, or one connection exceeds its partition.",
            data.stream.metric(
                "WriteProvisionedThroughputExceeded",
                dimensions_map={"StreamName": data.stream.stream_name},
                period=minute,
                statistic="Sum",
            ),
            threshold=0,
            minutes=5,
            window=5,
        ),
        Rule(
            "WorkerMemory",
            "Worker tasks use over 85 % of their memory.",
            fleet.workers.service.metric_memory_utilization(period=minute, statistic="Maximum"),
            threshold=85,
            minutes=5,
            window=5,
        ),
    )
