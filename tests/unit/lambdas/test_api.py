"""The API function, through its handler."""

import base64
import json
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connections.spec import MAX_BODY_BYTES
from lambdas.api import listing
from lambdas.api.patience import ANSWER_SECONDS
from lambdas.api.release import Clock, Releases
from lambdas.clients import ATTEMPT_SECONDS
from leases.conditions import AllOf, Equals, Write, Written
from leases.dynamodb import Table
from leases.rows import ConnectionRow, DeadBy, Desired, SessionRow, SessionState, connection_key, session_key
from leases.writes import claim, declare_dead, fail, finalize
from tests.unit.lambdas.conftest import Queue, request

URL = "wss://feed.example.com/ws"
SENTINELS = ("SENTINEL-93f1", "SENTINEL-77aa", "SENTINEL-0b0d")
CONTEXT = SimpleNamespace(function_name="api", memory_limit_in_mb=128, invoked_function_arn="a", aws_request_id="r")


class Api:
    """Calls the handler and reads its answers."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def event(self, event: dict[str, Any]) -> tuple[int, Any]:
        answer = self.module.handler(event, CONTEXT)
        assert answer["headers"]["Content-Type"] == "application/json"
        self.headers: dict[str, str] = answer["headers"]
        return answer["statusCode"], json.loads(answer["body"])

    def __call__(self, method: str, resource: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        return self.event(request(method, resource, body, **more))

    def create(self, body: Any = None, key: str | None = None, **more: Any) -> tuple[int, Any]:
        headers = {} if key is None else {"idempotency-Key": key}
        return self("POST", "/connections", {"url": URL} if body is None else body, headers=headers, **more)

    def new(self, **fields: Any) -> str:
        status, answer = self.create({"url": URL} | fields)
        assert status == 202
        return str(answer["connectionId"])

    def get(self, connection: str) -> Any:
        status, answer = self("GET", "/connections/{id}", connection=connection)
        assert status == 200
        return answer


@pytest.fixture
def api(load: Callable[[str], ModuleType], table: Table) -> Api:
    return Api(load("lambdas.api.handler"))


def row(table: Table, connection: str) -> ConnectionRow:
    item = table.get(connection_key(connection))
    assert item is not None
    return ConnectionRow.from_item(item)


def claimed(table: Table, connection: str, session: str) -> ConnectionRow:
    outcome = table.write(claim(row(table, connection), session, "nonce", strike=False))
    assert isinstance(outcome, Written)
    return ConnectionRow.from_item(outcome.image)


def inbox(table: Table, session: str) -> frozenset[str]:
    item = table.get(session_key(session))
    assert item is not None
    return SessionRow.from_item(item).inbox


# POST


def test_what_waits_for_room_says_so(api: Api, table: Table, worker: Callable[..., SessionRow]) -> None:
    connection = api.new()

    def status() -> dict[str, Any]:
        shown: dict[str, Any] = api("GET", "/connections/{id}", connection=connection)[1]["status"]
        return shown

    assert (status()["state"], status()["reason"]) == ("PENDING", "no_capacity")
    worker("full", held=10)
    worker("draining", state=SessionState.DRAINING)
    assert status()["reason"] == "no_capacity"
    worker("roomy", held=9)
    assert "reason" not in status()
    claimed(table, connection, "roomy")
    assert "reason" not in status()


def test_a_request_becomes_a_row_and_a_hint(
    api: Api, table: Table, queue: Queue, worker: Callable[..., SessionRow]
) -> None:
    worker("roomy")
    status, answer = api.create({"url": URL + "?q=1", "labels": {"a": "b"}, "headers": {"X": "y"}})
    assert status == 202
    connection = answer["connectionId"]
    assert api.headers["Location"] == f"./connections/{connection}"
    assert answer["desired"] == "RUNNING"
    assert answer["status"]["state"] == "PENDING"
    assert answer["owner"] is None
    assert answer["request"] == {"url": URL, "labels": {"a": "b"}, "headers": ["X"]}
    assert queue.take() == [connection]
    assert row(table, connection).desired is Desired.RUNNING
    assert api.get(connection) == answer


def test_a_paused_request_waits_for_nobody(api: Api, queue: Queue) -> None:
    status, answer = api.create({"url": URL, "desired": "PAUSED"})
    assert (status, answer["desired"], answer["status"]["state"]) == (202, "PAUSED", "PAUSED")
    assert queue.take() == []


def test_the_same_key_and_request_give_the_same_connection(api: Api, queue: Queue) -> None:
    body = {"url": URL, "wsPing": {"intervalSeconds": 20}}
    answers = [api.create(body, "key-1")[1] for _ in range(3)]
    answers.append(api.create({"url": URL}, "key-1")[1])
    same_role = "arn:aws:sts::123456789012:assumed-role/Deploy/another-run"
    answers.append(api.create(body, "key-1", person=same_role)[1])
    assert len({answer["connectionId"] for answer in answers}) == 1
    assert set(queue.take()) == {answers[0]["connectionId"]}


def test_another_request_under_the_same_key_is_a_conflict(api: Api) -> None:
    _, first = api.create({"url": URL}, "key-1")
    status, answer = api.create({"url": URL, "desired": "PAUSED"}, "key-1")
    assert (status, answer["error"]["code"]) == (409, "idempotency_conflict")
    assert api.get(first["connectionId"])["desired"] == "RUNNING"


def test_keys_of_different_callers_and_no_keys_are_different_connections(api: Api) -> None:
    people = ("arn:aws:iam::1:user/a", "arn:aws:iam::1:user/b", "arn:aws:sts::1:assumed-role/R/s", None)
    made = [api.create(None, "key", person=person)[1]["connectionId"] for person in people]
    made += [api.create()[1]["connectionId"] for _ in range(2)]
    assert len(set(made)) == 6


@pytest.mark.parametrize("key", ["", " ", "é", "a" * 256, " a", "a\n", "\x00"])
def test_odd_keys_are_refused(api: Api, key: str) -> None:
    status, answer = api.create(None, key)
    assert (status, answer["error"]["field"]) == (400, "Idempotency-Key")


def test_two_keys_are_none(api: Api, table: Table) -> None:
    for headers in ({"Idempotency-Key": ["a", "b"]}, {"Idempotency-Key": ["a"], "idempotency-key": ["a"]}):
        status, answer = api.event(request("POST", "/connections", {"url": URL}) | {"multiValueHeaders": headers})
        assert (status, answer["error"]["field"]) == (400, "Idempotency-Key")
    assert table.client.scan(TableName=table.name)["Count"] == 0


def test_a_stopped_connection_answers_its_key(api: Api) -> None:
    _, first = api.create(None, "key")
    api("DELETE", "/connections/{id}", connection=first["connectionId"])
    status, again = api.create(None, "key")
    assert (status, again["connectionId"], again["desired"]) == (202, first["connectionId"], "STOPPED")


def test_an_id_whose_lease_row_has_expired_but_not_yet_its_request_is_new(api: Api, table: Table) -> None:
    _, first = api.create(None, "key")
    connection = first["connectionId"]
    api("DELETE", "/connections/{id}", connection=connection)
    table.client.delete_item(TableName=table.name, Key={"pk": {"S": f"CONNECTION#{connection}"}, "sk": {"S": "LEASE"}})
    status, again = api.create({"url": "wss://other.example.com/"}, "key")
    assert (status, again["connectionId"], again["desired"]) == (202, connection, "RUNNING")
    assert again["request"]["url"] == "wss://other.example.com/"
    assert api.get(connection)["request"] == again["request"]


def test_a_queue_that_is_down_loses_no_request(
    api: Api, table: Table, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.client.delete_queue(QueueUrl=queue.url)
    status, answer = api.create(None, "key")
    assert status == 202
    assert row(table, answer["connectionId"]).owner.startswith("FREE#")  # type: ignore[union-attr]
    assert '"EnqueueFailures":[1.0]' in capsys.readouterr().out.replace(" ", "")


# Bad input


BAD_BODIES: list[tuple[str | None, str]] = [
    (None, "invalid_json"),
    ("", "invalid_json"),
    ("{", "invalid_json"),
    ("\ufeff{}", "invalid_json"),
    ('{"url":NaN}', "invalid_json"),
    ('{"url":1e999}', "invalid_json"),
    ('{"url":"a","url":"b"}', "invalid_json"),
    ('{"url":"\\ud800"}', "invalid_json"),
    ('{"url":"\ud800"}', "invalid_json"),
    ('{"url":"wss://a.example/","onOpen":["\ufffd"]}', "invalid_json"),
    ("[" * 5000, "invalid_json"),
    ('{"staleAfterSeconds":' + "9" * 400 + "}", "invalid_json"),
    ("[]", "invalid_type"),
    ('"x"', "invalid_type"),
    ("null", "invalid_type"),
    ("{}", "missing_field"),
    ('{"url":"http://x.example/"}', "scheme_not_allowed"),
    ('{"url":"wss://127.0.0.1/"}', "blocked_address"),
    ('{"url":"wss://a b/"}', "invalid_url"),
    ('{"url":"wss://a.example/","bogus":1}', "unknown_field"),
    (json.dumps({"url": URL + "?${t}", "secretRefs": {"t": "other/secret"}}), "secret_not_allowed"),
]


@pytest.mark.parametrize(("body", "code"), BAD_BODIES, ids=lambda value: ascii(value)[:40])
def test_bad_bodies_are_refused_with_a_code(api: Api, table: Table, body: str | None, code: str) -> None:
    status, answer = api("POST", "/connections", body)
    assert (status, answer["error"]["code"]) == (400, code)
    assert answer["error"]["message"]
    assert table.client.scan(TableName=table.name)["Count"] == 0


def test_bodies_up_to_the_limit_and_over_it(api: Api) -> None:
    body = json.dumps({"url": URL, "onOpen": ["x" * 30_000, "y"]})
    fits = body.replace('"y"', '"' + "y" * (MAX_BODY_BYTES - len(body) + 1) + '"')
    assert len(fits) == MAX_BODY_BYTES
    assert api("POST", "/connections", fits)[0] == 202
    status, answer = api("POST", "/connections", fits + " ")
    assert (status, answer["error"]["code"]) == (413, "too_large")
    assert api("POST", "/connections", "x" * 5_000_000)[0] == 413


def test_a_base64_body_is_decoded(api: Api) -> None:
    event = request("POST", "/connections", base64.b64encode(json.dumps({"url": URL}).encode()).decode())
    assert api.event(event | {"isBase64Encoded": True})[0] == 202
    for broken in ("%%%", "é", "AAA", base64.b64encode(b"\xff\xfe").decode()):
        status, answer = api.event(request("POST", "/connections", broken) | {"isBase64Encoded": True})
        assert (status, answer["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("connection", ["", "x", "../../etc", "a" * 26, "é", "%00", "a" * 3000, "LEASE", "\ud800", "*"])
@pytest.mark.parametrize(
    ("method", "resource", "body"),
    [
        ("GET", "/connections/{id}", None),
        ("PATCH", "/connections/{id}", {}),
        ("DELETE", "/connections/{id}", None),
        ("POST", "/connections/{id}/force-release", None),
        ("POST", "/workers/{id}/drain", None),
    ],
)
def test_odd_ids_are_not_found(api: Api, method: str, resource: str, body: Any, connection: str) -> None:
    status, answer = api(method, resource, body, connection=connection)
    assert (status, answer["error"]["code"]) == (404, "not_found")


def test_an_unknown_route_is_not_found(api: Api) -> None:
    assert api("PUT", "/connections", {})[0] == 404


BYTES = st.binary(max_size=100).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
TEXTS = st.text(max_size=60)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=150
)
@given(
    route=st.sampled_from(
        [
            ("POST", "/connections"),
            ("GET", "/connections"),
            ("GET", "/connections/{id}"),
            ("PATCH", "/connections/{id}"),
            ("POST", "/connections/{id}/force-release"),
            ("POST", "/workers/{id}/drain"),
        ]
    ),
    body=st.none() | BYTES | TEXTS | st.just('{"url":"wss://a.example/"}'),
    connection=TEXTS,
    query=st.dictionaries(st.sampled_from(["status", "owner", "label", "cursor", "x"]), TEXTS, max_size=3),
    key=st.none() | TEXTS,
    encoded=st.booleans(),
)
def test_whatever_is_sent_the_answer_is_never_5xx(
    api: Api, route: tuple[str, str], body: Any, connection: str, query: dict[str, str], key: str | None, encoded: bool
) -> None:
    headers = None if key is None else {"Idempotency-Key": key}
    event = request(*route, body, connection=connection, query=query, headers=headers)
    status, answer = api.event(event | {"isBase64Encoded": encoded})
    assert status in {200, 202, 400, 404, 409, 413}
    assert status < 400 or set(answer) == {"error"}


# PATCH and DELETE


def test_pausing_a_running_connection_keeps_its_owner_and_tells_it(
    api: Api, table: Table, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    connection = api.new()
    held = claimed(table, connection, "s1")
    status, answer = api("PATCH", "/connections/{id}", {"desired": "PAUSED"}, connection=connection)
    assert (status, answer["desired"], answer["owner"], answer["generation"]) == (202, "PAUSED", "s1", 2)
    assert (row(table, connection).epoch, inbox(table, "s1")) == (held.epoch, frozenset({connection}))


def test_a_full_inbox_becomes_a_look_at_everything(api: Api, table: Table, worker: Callable[..., SessionRow]) -> None:
    worker("s1")
    connection = api.new()
    claimed(table, connection, "s1")
    full = frozenset(f"c{number}" for number in range(100))
    table.write(Write(name="fill", key=session_key("s1"), condition=Equals("seq", 1), add={"inbox": full}))
    api("PATCH", "/connections/{id}", {"desired": "PAUSED"}, connection=connection)
    assert inbox(table, "s1") == frozenset({"*"})


def test_pausing_and_resuming_a_waiting_connection(api: Api, queue: Queue) -> None:
    connection = api.new()
    queue.take()
    _, paused = api("PATCH", "/connections/{id}", {"desired": "PAUSED"}, connection=connection)
    assert (paused["desired"], paused["status"]["state"]) == ("PAUSED", "PAUSED")
    assert queue.take() == []
    _, resumed = api("PATCH", "/connections/{id}", {"desired": "RUNNING"}, connection=connection)
    assert (resumed["desired"], resumed["status"]["state"]) == ("RUNNING", "PENDING")
    assert queue.take() == [connection]


def test_a_change_replaces_fields_and_leaves_the_others(api: Api) -> None:
    connection = api.new(labels={"a": "1"}, staleAfterSeconds=60, wsPing=None)
    patch = {"labels": {"b": "2"}, "staleAfterSeconds": None, "url": "wss://other.example.com/"}
    status, answer = api("PATCH", "/connections/{id}", patch, connection=connection)
    assert (status, answer["desired"], answer["generation"]) == (202, "RUNNING", 2)
    shown: dict[str, Any] = {"url": "wss://other.example.com/", "labels": {"b": "2"}, "wsPing": None, "headers": []}
    assert answer["request"] == shown
    assert api.get(connection)["request"] == shown


def test_a_change_that_changes_nothing_is_no_generation(api: Api) -> None:
    connection = api.new(labels={"a": "1"})
    unchanged: list[dict[str, Any]] = [{}, {"labels": {"a": "1"}}, {"desired": "RUNNING"}, {"wsPing": {}}]
    for patch in unchanged:
        status, answer = api("PATCH", "/connections/{id}", patch, connection=connection)
        assert (status, answer["generation"]) == (202, 1)


def test_a_failed_connection_is_tried_again(
    api: Api, table: Table, queue: Queue, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    connection = api.new()
    held = claimed(table, connection, "s1")
    table.write(fail(held, {"state": "FAILED", "since": "x", "reason": "auth"}, None))
    assert api.get(connection)["status"]["state"] == "FAILED"
    queue.take()
    status, answer = api("PATCH", "/connections/{id}", {"desired": "RUNNING"}, connection=connection)
    assert (status, answer["status"]["state"], answer["generation"]) == (202, "PENDING", 2)
    assert queue.take() == [connection]


def test_another_url_leaves_a_paused_connection_paused_and_tries_a_failed_one_again(
    api: Api, table: Table, queue: Queue, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    moved = {"url": "wss://moved.example.com/"}
    paused = api.new(desired="PAUSED")
    status, answer = api("PATCH", "/connections/{id}", moved, connection=paused)
    assert (status, answer["desired"], answer["status"]["state"], answer["generation"]) == (202, "PAUSED", "PAUSED", 2)
    assert (answer["request"]["url"], queue.take()) == (moved["url"], [])
    failed = api.new()
    table.write(fail(claimed(table, failed, "s1"), {"state": "FAILED", "since": "x"}, None))
    queue.take()
    status, answer = api("PATCH", "/connections/{id}", moved, connection=failed)
    assert (status, answer["status"]["state"], answer["request"]["url"]) == (202, "PENDING", moved["url"])
    assert queue.take() == [failed]
    stopped = api.new()
    api("DELETE", "/connections/{id}", connection=stopped)
    assert api("PATCH", "/connections/{id}", moved, connection=stopped)[0] == 409
    assert api.get(stopped)["generation"] == 2


@pytest.mark.parametrize(
    ("patch", "code", "field"),
    [
        ([], "invalid_type", None),
        ({"desired": "STOPPED"}, "invalid_value", "desired"),
        ({"bogus": 1}, "unknown_field", "bogus"),
        ({"url": None}, "invalid_type", "url"),
        ({"url": "wss://10.0.0.1/"}, "blocked_address", "url"),
        ({"headers": {"Host": "x"}}, "invalid_value", "headers.Host"),
        ({"headers": None}, "invalid_type", "headers"),
        ({"secretRefs": {"t": "other/x"}, "headers": {"A": "${t}"}}, "secret_not_allowed", "secretRefs.t"),
        ({"connectionId": "x"}, "unknown_field", "connectionId"),
    ],
)
def test_bad_changes_change_nothing(api: Api, patch: Any, code: str, field: str | None) -> None:
    connection = api.new()
    status, answer = api("PATCH", "/connections/{id}", patch, connection=connection)
    assert (status, answer["error"]["code"], answer["error"].get("field")) == (400, code, field)
    assert api.get(connection)["generation"] == 1


def test_deleting_twice_is_fine(api: Api, table: Table, worker: Callable[..., SessionRow]) -> None:
    worker("s1")
    connection = api.new()
    held = claimed(table, connection, "s1")
    for _ in range(2):
        status, answer = api("DELETE", "/connections/{id}", connection=connection)
        assert (status, answer["desired"], answer["owner"], answer["generation"]) == (202, "STOPPED", "s1", 2)
    assert inbox(table, "s1") == frozenset({connection})
    now = row(table, connection)
    assert isinstance(table.write(finalize(now, {"state": "STOPPED", "since": "x"}, None, 1_900_000_000)), Written)
    status, answer = api("DELETE", "/connections/{id}", connection=connection)
    assert (status, answer["owner"], answer["status"]["state"], answer["epoch"]) == (202, None, "STOPPED", held.epoch)
    status, answer = api("PATCH", "/connections/{id}", {"desired": "RUNNING"}, connection=connection)
    assert (status, answer["error"]["code"]) == (409, "stopped")


def test_a_change_that_others_overtake_is_made_on_what_they_left(api: Api, table: Table) -> None:
    connection = api.new()
    overtaken: list[int] = []

    def overtake(**_: Any) -> None:
        if len(overtaken) < 2:
            overtaken.append(1)
            bump = Write(
                name="other",
                key=connection_key(connection),
                condition=AllOf(()),
                set={"generation": 1 + len(overtaken)},
            )
            spec = table.get(connection_key(connection)._replace(sk="SPEC#1"))
            assert spec is not None
            moved = {"spec": spec["spec"], "labels": {}}
            key = connection_key(connection)._replace(sk=f"SPEC#{1 + len(overtaken)}")
            table.write(Write(name="other", key=key, condition=AllOf(()), set=moved))
            table.write(bump)

    api.module.table.client.meta.events.register("before-call.dynamodb.TransactWriteItems", overtake)
    status, answer = api("PATCH", "/connections/{id}", {"desired": "PAUSED"}, connection=connection)
    assert (status, answer["generation"], answer["desired"], len(overtaken)) == (202, 4, "PAUSED", 2)


# Lists


def everything(api: Api, **query: str) -> list[str]:
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        status, answer = api("GET", "/connections", query=query | cursor)
        assert status == 200, answer
        found += [connection["connectionId"] for connection in answer["connections"]]
        if answer["cursor"] is None:
            return sorted(found)
        cursor = {"cursor": answer["cursor"]}


def test_lists_by_status_owner_and_label_over_all_pages(
    api: Api, table: Table, worker: Callable[..., SessionRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)
    worker("s1")
    made = [api.new(labels={"team.name": "a" if number % 2 else "b"}) for number in range(7)]
    paused = api.new(desired="PAUSED")
    for connection in made[:5]:
        claimed(table, connection, "s1")
    assert everything(api) == sorted([*made, paused])
    assert everything(api, status="PAUSED") == [paused]
    assert everything(api, status="OPEN") == []
    assert everything(api, owner="s1") == sorted(made[:5])
    assert everything(api, owner="nobody") == everything(api, owner="x y") == []
    assert [everything(api, owner=f"PARKED#{shard}") for shard in range(16)] == [[]] * 16
    assert everything(api, label="team.name=a") == sorted(made[1::2])
    assert everything(api, label="team.name=a", owner="s1") == sorted([made[1], made[3]])
    assert everything(api, label="team.name=z") == everything(api, label="other=a") == []


def test_a_list_by_label_knows_the_labels_of_now(api: Api) -> None:
    connection = api.new(labels={"team": "a"})
    api("PATCH", "/connections/{id}", {"labels": {"team": "b"}}, connection=connection)
    assert everything(api, label="team=a") == []
    assert everything(api, label="team=b") == [connection]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"status": "open"}, "status"),
        ({"status": ""}, "status"),
        ({"label": "team"}, "label"),
        ({"label": "=x"}, "label"),
        ({"label": "a b=x"}, "label"),
        ({"label": "a=" + "x" * 129}, "label"),
        ({"cursor": ""}, "cursor"),
        ({"cursor": "é"}, "cursor"),
        ({"cursor": "AAAA"}, "cursor"),
        ({"cursor": base64.b64encode(b"one").decode()}, "cursor"),
        ({"owner": "s1", "cursor": base64.b64encode(b"pk sk").decode()}, "cursor"),
        ({"limit": "5"}, "limit"),
        ({"Status": "OPEN"}, "Status"),
    ],
)
def test_bad_parameters_are_named(api: Api, query: dict[str, str], field: str) -> None:
    status, answer = api("GET", "/connections", query=query)
    assert (status, answer["error"]["field"]) == (400, field)


def test_no_route_ignores_a_parameter(api: Api) -> None:
    for method, resource in (route.split(" ") for route in api.module.ROUTES):
        status, answer = api(method, resource, {}, connection="a" * 26, query={"force": "true"})
        assert (status, answer["error"]["code"], answer["error"]["field"]) == (400, "unknown_field", "force")


def test_what_stands_for_lost_bytes_can_be_written_as_an_escape(api: Api) -> None:
    assert api("POST", "/connections", '{"url":"wss://a.example/","onOpen":["\\ufffd"]}')[0] == 202


def test_a_name_that_no_text_may_hold_is_named_in_an_answer_that_can_be_sent(api: Api) -> None:
    event = request("GET", "/connections", query={"\udcff": "x"})
    answer = api.module.handler(event, CONTEXT)
    assert (answer["statusCode"], answer["body"].isascii()) == (400, True)


def test_a_parameter_given_twice_is_refused(api: Api) -> None:
    event = request("GET", "/connections") | {"multiValueQueryStringParameters": {"status": ["OPEN", "FAILED"]}}
    status, answer = api.event(event)
    assert (status, answer["error"]["field"]) == (400, "status")


# Force-release


def test_a_connection_of_a_live_owner_is_not_released(
    api: Api, table: Table, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    connection = api.new()
    held = claimed(table, connection, "s1")
    status, answer = api("POST", "/connections/{id}/force-release", connection=connection)
    assert (status, answer["error"]["code"]) == (409, "owner_alive")
    assert row(table, connection) == held


@pytest.mark.parametrize(("dead_by", "waits"), [(None, 10.0), (DeadBy.JUDGE, 0.0), (DeadBy.EXIT, 0.0)])
def test_a_connection_of_a_dead_owner_is_released_and_fenced(
    api: Api, table: Table, queue: Queue, worker: Callable[..., SessionRow], dead_by: DeadBy | None, waits: float
) -> None:
    """None: there is no such session, so that it has to be given the time in which it must have noticed."""
    connection = api.new()
    if dead_by is not None:
        worker("s1")
        table.write(declare_dead("s1", dead_by, None, 1_900_000_000))
    held = claimed(table, connection, "s1")
    queue.take()
    clock = FakeClock()
    with_clock(api, clock)
    status, answer = api("POST", "/connections/{id}/force-release", connection=connection)
    assert (status, answer["owner"], answer["epoch"]) == (202, None, held.epoch + 1)
    assert answer["status"]["state"] == "PENDING"
    assert clock.time - 100.0 == waits
    assert queue.take() == [connection]
    again, answer = api("POST", "/connections/{id}/force-release", {"killSession": False}, connection=connection)
    assert (again, answer["epoch"]) == (202, held.epoch + 1)


class FakeClock:
    """Time that passes only while somebody waits, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[float], None] = lambda _: None, stall: float = 0.0) -> None:
        self.time = 100.0
        self.meanwhile = meanwhile
        self.stall = stall

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds + self.stall
        self.meanwhile(self.time - 100.0)


def with_clock(api: Api, clock: FakeClock) -> Api:
    api.module.releases = Releases(api.module.connections, Clock(clock.now, clock.sleep))  # type: ignore[attr-defined]
    return api


KILL = {"killSession": True}


def test_a_frozen_owner_is_declared_dead_after_its_whole_takeover_time(
    api: Api, table: Table, worker: Callable[..., SessionRow]
) -> None:
    worker("s1", seq=41)
    connection = api.new()
    held = claimed(table, connection, "s1")
    clock = FakeClock()
    status, answer = with_clock(api, clock)("POST", "/connections/{id}/force-release", KILL, connection=connection)
    assert (status, answer["owner"], answer["epoch"]) == (202, None, held.epoch + 1)
    assert 7.0 <= clock.time - 100.0 <= 7.5
    item = table.get(session_key("s1"))
    assert item is not None
    assert (item["state"], item["dead_by"]) == ("DEAD", "judge")


def test_an_owner_that_shows_life_at_the_last_moment_is_kept(
    api: Api, table: Table, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    connection = api.new()
    held = claimed(table, connection, "s1")

    def beat(elapsed: float) -> None:
        if elapsed >= 7.0:
            table.write(Write(name="beat", key=session_key("s1"), condition=AllOf(()), set={"seq": 2}))

    kill = with_clock(api, FakeClock(beat))("POST", "/connections/{id}/force-release", KILL, connection=connection)
    assert (kill[0], kill[1]["error"]["code"]) == (409, "owner_alive")
    assert row(table, connection) == held


def test_a_watch_ends_with_the_first_sign_of_life(api: Api, table: Table, worker: Callable[..., SessionRow]) -> None:
    worker("s1")
    connection = api.new()
    claimed(table, connection, "s1")

    def beat(elapsed: float) -> None:
        table.write(Write(name="beat", key=session_key("s1"), condition=AllOf(()), set={"seq": int(elapsed) + 1}))

    clock = FakeClock(beat)
    assert with_clock(api, clock)("POST", "/connections/{id}/force-release", KILL, connection=connection)[0] == 409
    assert clock.time - 100.0 <= 1.0


def test_a_watch_with_gaps_proves_nothing(api: Api, table: Table, worker: Callable[..., SessionRow]) -> None:
    worker("s1")
    connection = api.new()
    held = claimed(table, connection, "s1")
    clock = FakeClock(stall=2.0)
    status, _ = with_clock(api, clock)("POST", "/connections/{id}/force-release", KILL, connection=connection)
    assert (status, row(table, connection)) == (503, held)
    assert clock.time - 100.0 < 15


def test_a_session_that_nobody_can_watch_in_one_call_is_left_to_the_judges(
    api: Api, worker: Callable[..., SessionRow], table: Table
) -> None:
    worker("s1", takeover_ms=60_000)
    connection = api.new()
    claimed(table, connection, "s1")
    status, answer = api("POST", "/connections/{id}/force-release", KILL, connection=connection)
    assert (status, answer["error"]["code"]) == (409, "takeover_too_long")


def test_a_bad_release_is_named(api: Api) -> None:
    connection = api.new()
    status, answer = api("POST", "/connections/{id}/force-release", {"killSession": 1}, connection=connection)
    assert (status, answer["error"]["field"]) == (400, "killSession")


# Workers


def test_workers_are_listed_and_drained(api: Api, table: Table, worker: Callable[..., SessionRow]) -> None:
    worker("s1", held=3)
    worker("s2", opened_at=1_700_000_000)
    worker("s3")
    table.write(declare_dead("s3", DeadBy.EXIT, None, 1_900_000_000))
    _, answer = api("GET", "/workers")
    assert [each["workerId"] for each in answer["workers"]] == ["s2", "s1", "s3"]
    assert answer["workers"][1]["held"] == 3
    assert (answer["workers"][2]["state"], answer["workers"][2]["deadBy"]) == ("DEAD", "exit")
    for _ in range(2):
        status, drained = api("POST", "/workers/{id}/drain", connection="s1")
        assert (status, drained["state"]) == (202, "DRAINING")
    status, answer = api("POST", "/workers/{id}/drain", connection="s3")
    assert (status, answer["error"]["code"]) == (409, "worker_dead")


def test_a_connection_shows_the_state_of_its_owner(api: Api, table: Table, worker: Callable[..., SessionRow]) -> None:
    worker("s1")
    connection = api.new()
    claimed(table, connection, "s1")
    assert api.get(connection)["ownerState"] == "LIVE"
    table.write(declare_dead("s1", DeadBy.EXIT, None, 1_900_000_000))
    assert api.get(connection)["ownerState"] == "DEAD"


# Rows that somebody has edited by hand, or that another version wrote


BROKEN: list[dict[str, Any]] = [
    {"owner": "s1"},
    {"owner": "s1", "epoch": 1, "generation": 1, "desired": "ASLEEP"},
    {"owner": "s1", "epoch": 1, "generation": 1, "desired": "RUNNING", "next": "x"},
    {"owner": "s1", "epoch": 1, "generation": 1, "desired": "RUNNING", "handoff": {}},
]


@pytest.mark.parametrize("attributes", BROKEN, ids=ascii)
def test_an_unreadable_row_is_told_of_and_hides_no_other(
    api: Api, table: Table, worker: Callable[..., SessionRow], attributes: dict[str, Any]
) -> None:
    worker("s1")
    broken = "b" * 26
    table.write(Write(name="edit", key=connection_key(broken), condition=AllOf(()), set=attributes))
    labels = {"labels": {"a": "b"}, "spec": "{}"}
    spec = connection_key(broken)._replace(sk="SPEC#1")
    table.write(Write(name="edit", key=spec, condition=AllOf(()), set=labels))
    good = api.new(labels={"a": "b"})
    claimed(table, good, "s1")
    for method, resource in (
        ("GET", "/connections/{id}"),
        ("PATCH", "/connections/{id}"),
        ("DELETE", "/connections/{id}"),
        ("POST", "/connections/{id}/force-release"),
    ):
        status, answer = api(method, resource, {} if method == "PATCH" else None, connection=broken)
        assert (status, answer["error"]["code"]) == (409, "unreadable")
    assert everything(api) == everything(api, owner="s1") == everything(api, label="a=b") == [good]


def test_a_row_of_an_unreadable_request_can_be_looked_at_and_deleted(api: Api, table: Table) -> None:
    connection = api.new()
    for attributes in ({"spec": "{"}, {"spec": 5}, {"spec": '{"url":"wss://a.example/","later":1}'}):
        spec = connection_key(connection)._replace(sk="SPEC#1")
        table.write(Write(name="edit", key=spec, condition=AllOf(()), set=attributes))
        assert "request" not in api.get(connection)
        status, answer = api("PATCH", "/connections/{id}", {"desired": "PAUSED"}, connection=connection)
        assert (status, answer["error"]["code"]) == (409, "unreadable")
    table.write(Write(name="edit", key=connection_key(connection), condition=AllOf(()), set={"status": "x"}))
    assert everything(api, status="PENDING") == [connection]
    assert api("DELETE", "/connections/{id}", connection=connection)[0] == 202


def test_an_unreadable_worker_is_told_of_and_hides_no_other(
    api: Api, table: Table, worker: Callable[..., SessionRow]
) -> None:
    worker("s1")
    table.write(Write(name="edit", key=session_key("s2"), condition=AllOf(()), set={"state": "LIVE"}))
    connection = api.new()
    claimed(table, connection, "s2")
    assert [each["workerId"] for each in api("GET", "/workers")[1]["workers"]] == ["s1"]
    assert api.get(connection)["ownerState"] == "LIVE"
    for method in ("/workers/{id}/drain", "/connections/{id}/force-release"):
        status, answer = api("POST", method, KILL, connection="s2" if "workers" in method else connection)
        assert (status, answer["error"]["code"]) == (409, "unreadable")


# Outages and secrets


def test_a_table_that_does_not_answer_is_503_for_every_route(api: Api, table: Table) -> None:
    connection = api.new()
    table.client.delete_table(TableName=table.name)
    for method, resource in (route.split(" ") for route in api.module.ROUTES):
        body = {"url": URL} if (method, resource) == ("POST", "/connections") else {} if method == "PATCH" else None
        path = {"connection": connection} if "{id}" in resource else {}
        status, answer = api(method, resource, body, **path)
        sent = (method, resource) in (("POST", "/connections"), ("POST", "/workers/{id}/drain"))
        assert (status, answer["error"]["code"]) == (503, "outcome_unknown" if sent else "unavailable")
        assert api.headers["Retry-After"] == "1"


def test_clients_give_up_in_time_to_answer(api: Api) -> None:
    """Attempts, each at most connect plus read, must end before 3 seconds."""
    table, queue = (
        client.meta.config for client in (api.module.table.client, api.module.connections.notifier.queue.client)
    )
    assert table.retries["total_max_attempts"] == 1
    assert table.connect_timeout + table.read_timeout == ATTEMPT_SECONDS < ANSWER_SECONDS < 2.9
    assert queue.retries["total_max_attempts"] * (queue.connect_timeout + queue.read_timeout) < 2.9


def test_no_secret_is_shown_or_logged_whatever_happens(
    api: Api, table: Table, queue: Queue, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    query, header, frame = SENTINELS
    body: dict[str, Any] = {
        "url": f"{URL}?token={query}",
        "headers": {"Authorization": f"Bearer {header}"},
        "onOpen": [frame],
        "appPing": {"payload": frame, "intervalSeconds": 5},
        "subprotocols": [header],
    }
    shown: list[Any] = []
    _, made = api.create(body, "key")
    connection = made["connectionId"]
    shown += [made, api.get(connection), api.create(body | {"desired": "PAUSED"}, "key"), everything(api)]
    for wrong in (
        {"url": f"ws://x.example/?{query}"},
        {"url": f"wss://{query}:{header}@x.example/"},
        {"headers": {"Authorization": f"{header}\r\n"}},
        {"onOpen": [{"base64": frame}]},
        {"onOpen": [{"text": frame, "bogus": frame}]},
        {"desired": header},
    ):
        shown += [api.create(body | wrong), api("PATCH", "/connections/{id}", wrong, connection=connection)]
    shown += [
        api("POST", "/connections", json.dumps(body)[:-1]),
        api("PATCH", "/connections/{id}", body, connection=connection),
    ]
    queue.client.delete_queue(QueueUrl=queue.url)
    shown += [api.create(body)]
    table.client.delete_table(TableName=table.name)
    shown += [api.create(body), api("PATCH", "/connections/{id}", body, connection=connection)]
    everything_said = json.dumps(shown) + "".join(capsys.readouterr()) + caplog.text
    assert '"service"' in everything_said
    for sentinel in SENTINELS:
        assert sentinel not in everything_said
