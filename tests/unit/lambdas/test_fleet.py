"""The functions that look after the fleet: task_stopped, audit, and the widget."""

import json
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import boto3
import pytest

from connections.rows import create
from connections.spec import ConnectionSpec
from lambdas.audit.auditing import MEMORY, audit
from lambdas.clients import HintQueue
from lambdas.fleet_widget.page import render
from lambdas.task_stopped.exits import proven_exit
from leases.conditions import AllOf, Unknown, Write, Written
from leases.dynamodb import Table
from leases.ports import Page
from leases.rows import ConnectionRow, DeadBy, Desired, SessionRow, SessionState, connection_key, session_key
from leases.writes import claim, declare_dead, fail
from telemetry.metrics import METRICS, Emitter
from tests.unit.lambdas.conftest import Queue

CONTEXT = SimpleNamespace(function_name="f", memory_limit_in_mb=128, invoked_function_arn="a", aws_request_id="r")
SPEC = ConnectionSpec(url="wss://feed.example.com/")
NOW = 1_800_000_000.0


def made(table: Table, connection: str, owner: str | None = None, desired: Desired = Desired.RUNNING) -> ConnectionRow:
    assert table.transact(create(connection, SPEC, desired, b"", NOW)) == {}
    item = table.get(connection_key(connection))
    assert item is not None
    if owner is not None:
        outcome = table.write(claim(ConnectionRow.from_item(item), owner, "n", strike=False))
        assert isinstance(outcome, Written)
        item = outcome.image
    return ConnectionRow.from_item(item)


def state(table: Table, session: str) -> Any:
    item = table.get(session_key(session))
    assert item is not None
    return item["state"], item.get("dead_by")


def stopped(*exit_codes: int | None, **detail: Any) -> dict[str, Any]:
    containers = [{"name": "worker"} | ({} if code is None else {"exitCode": code}) for code in exit_codes]
    return {"detail": {"taskArn": "arn:task/1", "lastStatus": "STOPPED", "containers": containers} | detail}


# task_stopped


def test_a_task_that_exited_is_buried_and_its_connections_offered(
    load: Callable[[str], ModuleType],
    table: Table,
    queue: Queue,
    worker: Callable[..., SessionRow],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for session, task in (("s1", "arn:task/1"), ("s2", "arn:task/1"), ("s3", "arn:task/3")):
        worker(session, task_arn=task)
    ids = [f"c{number}" for number in range(25)]
    for number, connection in enumerate(ids):
        made(table, connection, f"s{1 + number % 2}")
    made(table, "other", "s3")
    handler = load("lambdas.task_stopped.handler").handler
    handler(stopped(137), CONTEXT)
    assert state(table, "s1") == state(table, "s2") == ("DEAD", "exit")
    assert state(table, "s3") == ("LIVE", None)
    assert sorted(queue.take()) == sorted(ids)
    metric = next(json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    assert (metric["SessionsDeclaredDead"], metric["cause"]) == ([2.0], "stopped")


def test_the_event_may_come_again(
    load: Callable[[str], ModuleType], table: Table, queue: Queue, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    made(table, "c1", "s1")
    handler = load("lambdas.task_stopped.handler").handler
    for _ in range(2):
        handler(stopped(0), CONTEXT)
        assert queue.take() == ["c1"]
    assert state(table, "s1") == ("DEAD", "exit")


@pytest.mark.parametrize(
    "event",
    [
        stopped(None),
        stopped(),
        stopped(0, None),
        stopped(137, lastStatus="DEACTIVATING"),
        stopped(137, containers=None),
    ],
)
def test_without_the_exit_code_of_every_container_the_judges_decide(
    load: Callable[[str], ModuleType], table: Table, worker: Callable[..., SessionRow], event: dict[str, Any]
) -> None:
    worker("s1")
    load("lambdas.task_stopped.handler").handler(event, CONTEXT)
    assert state(table, "s1") == ("LIVE", None)
    assert proven_exit(event["detail"]) is None


def test_an_outage_makes_the_event_come_again(load: Callable[[str], ModuleType], table: Table) -> None:
    handler = load("lambdas.task_stopped.handler").handler
    table.client.delete_table(TableName=table.name)
    with pytest.raises(Unknown):
        handler(stopped(1), CONTEXT)


# audit


@pytest.fixture
def hints(queue: Queue) -> HintQueue:
    return HintQueue(queue.client, queue.url)


def test_an_audit_counts_the_fleet(
    table: Table, queue: Queue, hints: HintQueue, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    worker("s2", state=SessionState.DRAINING)
    worker("s3")
    table.write(declare_dead("s3", DeadBy.JUDGE, None, 1))
    made(table, "a", "s1")
    made(table, "b", "s2")
    made(table, "c", "s3")
    made(table, "d", "never-heard-of")
    made(table, "e")
    made(table, "f", desired=Desired.PAUSED)
    report = audit(table, hints, NOW)
    assert (report.held, report.pending, report.unowned, report.parked, report.wanted) == (2, 1, 2, 1, 5)
    assert (report.live, report.draining, report.capacity) == (1, 1, 10)
    assert (report.oldest_wait, report.repaired) == (0, 0)
    assert sorted(queue.take()) == ["c", "d"]


def test_waiting_is_timed_from_when_it_was_first_seen(
    table: Table, hints: HintQueue, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    made(table, "a")
    assert audit(table, hints, NOW).oldest_wait == 0
    made(table, "b", "gone")
    assert audit(table, hints, NOW + 60).oldest_wait == 60
    row = table.get(connection_key("a"))
    assert row is not None
    table.write(claim(ConnectionRow.from_item(row), "s1", "n", strike=False))
    report = audit(table, hints, NOW + 120)
    assert (report.oldest_wait, report.repaired) == (60, 1)
    row = table.get(connection_key("b"))
    assert row is not None
    table.write(claim(ConnectionRow.from_item(row), "s1", "n", strike=False))
    assert audit(table, hints, NOW + 180).oldest_wait == 0
    assert (table.get(MEMORY) or {})["seen"] == {}


def test_a_stale_index_alarms_nobody(
    table: Table, queue: Queue, hints: HintQueue, worker: Callable[..., SessionRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index still names a dead owner, but the row has a live one."""
    worker("s1")
    made(table, "a", "s1")
    monkeypatch.setattr(Table, "owners", lambda *_: Page([("dead-session", "a")], None))
    report = audit(table, hints, NOW)
    assert (report.unowned, report.oldest_wait, queue.take()) == (0, 0, [])


def test_an_owner_that_the_listing_does_not_show_yet_is_asked_for(
    table: Table, queue: Queue, hints: HintQueue, worker: Callable[..., SessionRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker("s1")
    made(table, "a", "s1")
    monkeypatch.setattr(Table, "sessions", lambda *_: Page([], None))
    report = audit(table, hints, NOW)
    assert (report.held, report.unowned, queue.take()) == (1, 0, [])


def test_wanted_rows_that_are_parked_are_freed_each_shard_in_its_turn(
    table: Table, queue: Queue, hints: HintQueue, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    made(table, "stuck", desired=Desired.PAUSED)
    table.write(
        Write(name="x", key=connection_key("stuck"), condition=AllOf(()), set={"desired": Desired.RUNNING.value})
    )
    made(table, "paused", desired=Desired.PAUSED)
    failed = made(table, "failed", "s1")
    table.write(fail(failed, {"state": "FAILED", "since": "x"}, None))
    repaired = [audit(table, hints, NOW + 60 * minute).repaired for minute in range(16)]
    assert sum(repaired) == 1
    assert queue.take().count("stuck") == 1
    owners = {name: (table.get(connection_key(name)) or {})["owner"][:4] for name in ("stuck", "paused", "failed")}
    assert owners == {"stuck": "FREE", "paused": "PARK", "failed": "PARK"}


def test_what_cannot_be_read_is_left_to_its_owner_and_hides_nothing_else(
    load: Callable[[str], ModuleType],
    table: Table,
    queue: Queue,
    hints: HintQueue,
    worker: Callable[..., SessionRow],
) -> None:
    worker("s1")
    table.write(Write(name="edit", key=session_key("later"), condition=AllOf(()), set={"state": "RESTING"}))
    made(table, "a", "later")
    made(table, "b", "gone")
    table.write(Write(name="edit", key=connection_key("c"), condition=AllOf(()), set={"owner": "gone"}))
    report = audit(table, hints, NOW)
    assert (report.live, report.held, report.unowned, queue.take()) == (1, 2, 1, ["b"])
    assert "<b>1</b> worker processes" in load("lambdas.fleet_widget.handler").handler({}, CONTEXT)
    load("lambdas.task_stopped.handler").handler(stopped(0), CONTEXT)
    assert state(table, "s1") == ("DEAD", "exit")


def test_the_audit_emits_all_of_its_metrics(
    load: Callable[[str], ModuleType], table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    load("lambdas.audit.handler").handler({}, CONTEXT)
    emitted = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = {metric["Name"]: metric["Unit"] for metric in emitted["_aws"]["CloudWatchMetrics"][0]["Metrics"]}
    assert names == {metric.name: metric.unit for metric in METRICS if Emitter.AUDIT in metric.emitters}
    assert emitted["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["service"]]


def test_a_hint_that_is_refused_is_an_error(queue: Queue) -> None:
    """SQS answers 200 and lists what it refused."""
    refused = {"Successful": [], "Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}]}
    client = boto3.client("sqs")
    client.meta.events.register("after-call.sqs.SendMessageBatch", lambda parsed, **_: parsed.update(refused))
    with pytest.raises(Unknown, match="1 of 1 refused"):
        HintQueue(client, queue.url).send(["a"])


# fleet_widget


def test_the_widget_shows_who_holds_what(load: Callable[[str], ModuleType], worker: Callable[..., SessionRow]) -> None:
    worker("<script>", held=7, task_arn="arn:aws:ecs:x:1:task/cluster/abcdef")
    handler = load("lambdas.fleet_widget.handler").handler
    html = handler({}, CONTEXT)
    assert "<b>1</b> worker processes hold <b>7</b> of at most <b>10</b>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<td>abcdef</td>" in html
    assert handler({"describe": True}, CONTEXT).startswith("### ")


def test_the_widget_says_so_when_it_knows_nothing(load: Callable[[str], ModuleType], table: Table) -> None:
    handler = load("lambdas.fleet_widget.handler").handler
    table.client.delete_table(TableName=table.name)
    assert "does not answer" in handler({}, CONTEXT)


def test_the_widget_stays_small_however_many_died() -> None:
    dead = [
        SessionRow(
            session=f"s{number}",
            state=SessionState.DEAD,
            seq=1,
            takeover_ms=7000,
            capacity=0,
            held=0,
            rate=0,
            revision=1,
            task_arn="t",
            inbox=frozenset(),
            opened_at=number,
        )
        for number in range(500)
    ]
    html = render(dead)
    assert html.count("<tr>") == 11
    assert "500 ended" in html
