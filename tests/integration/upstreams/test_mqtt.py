"""MQTT 3.1.1 over WebSocket (OASIS standard, section 6), served by Eclipse Mosquitto."""

import base64
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from leases.ports import Parting
from tests.integration.engine.conftest import Bench
from tests.integration.upstreams.conftest import Command, Server
from tests.support.upstream import until
from worker.runner import Runner

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.asyncio(loop_factories=["uvloop"]),
    pytest.mark.usefixtures("quick"),
    pytest.mark.skipif(MOSQUITTO is None, reason="needs the broker: apt-get install mosquitto"),
]

PAYLOAD = bytes(range(256))
KEEP_ALIVE = 2
"""Seconds: half as long again without a packet from the client, and the broker hangs up."""


def packet(kind: int, body: bytes) -> bytes:
    """A control packet (section 2.2): first byte, remaining length, rest."""
    length, size = len(body), b""
    while True:
        length, low = divmod(length, 128)
        size += bytes([low | (0x80 if length else 0)])
        if not length:
            return bytes([kind]) + size + body


def string(value: bytes) -> bytes:
    """A field with its length before it (section 1.5.3)."""
    return len(value).to_bytes(2, "big") + value


def connect(client: bytes) -> bytes:
    """CONNECT, with a clean session (section 3.1)."""
    return packet(0x10, string(b"MQTT") + b"\x04\x02" + KEEP_ALIVE.to_bytes(2, "big") + string(client))


SUBSCRIBE = packet(0x82, b"\x00\x01" + string(b"feed/#") + b"\x00")
PUBLISH = packet(0x31, string(b"feed/one") + PAYLOAD)
"""Retained: who subscribes later gets it as well (section 3.3.1.3)."""
CONNACK, SUBACK, PINGRESP = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00", b"\xd0\x00"


def request(client: bytes, then: bytes) -> dict[str, Any]:
    """A request: connect, wait for CONNACK, say one thing, and keep it alive with PINGREQ."""
    return {
        "subprotocols": ["mqtt"],
        "onOpen": [
            {"base64": base64.b64encode(connect(client)).decode()},
            {"waitFor": {"contains": CONNACK.decode()}, "base64": base64.b64encode(then).decode()},
        ],
        "appPing": {"payload": {"base64": base64.b64encode(b"\xc0\x00").decode()}, "intervalSeconds": 1},
    }


@pytest.fixture
def mosquitto(serve: Callable[[Command], Server], tmp_path: Path) -> Server:
    """A broker, not yet started."""

    def command(port: int) -> Sequence[str]:
        config = tmp_path / "mosquitto.conf"
        # Some versions refuse to start with a WebSocket listener alone, so there is one on a Unix socket as well.
        listeners = f"listener {port} 127.0.0.1\nprotocol websockets\nlistener 0 mqtt.sock\n"
        config.write_text(f"user root\nallow_anonymous true\n{listeners}")
        return str(MOSQUITTO), "-v", "-c", str(config)

    return serve(command)


def packets(bench: Bench, runner: Runner) -> list[bytes]:
    """What came, a packet in each message."""
    records = [record for record in bench.records(runner.connection) if record["type"] == "message"]
    assert {record["encoding"] for record in records} <= {"base64"}
    return [base64.b64decode(record["data"]) for record in records]


async def test_binary_packets_come_as_they_are_and_a_restart_of_the_broker_is_survived(
    bench: Bench, mosquitto: Server
) -> None:
    await mosquitto.start()
    subscriber, lease = bench.run(mosquitto.url("/mqtt"), **request(b"subscriber", SUBSCRIBE))
    publisher, _ = bench.run(mosquitto.url("/mqtt"), **request(b"publisher", PUBLISH))

    def came() -> list[bytes]:
        return [each for each in packets(bench, subscriber) if each != PINGRESP]

    await until(lambda: len(came()) == 3)
    # The broker clears the retain flag for who was subscribed before.
    delivered = {PUBLISH, bytes([PUBLISH[0] & 0xFE]) + PUBLISH[1:]}
    assert came()[:2] == [CONNACK, SUBACK]
    assert came()[2] in delivered
    # The keepalive is what keeps it, since nothing else is said for longer than the broker waits.
    await until(lambda: packets(bench, subscriber).count(PINGRESP) >= 2 * KEEP_ALIVE)
    assert bench.kinds(subscriber).count("opened") == 1

    await mosquitto.stop()
    await until(lambda: lease.state == "BACKING_OFF")
    await mosquitto.start()
    await until(lambda: len(came()) == 6)
    assert came()[3:5] == [CONNACK, SUBACK]
    assert came()[5] in delivered
    assert [kind for kind in bench.kinds(subscriber) if kind != "message"] == ["opened", "closed", "gap", "opened"]

    for runner in (subscriber, publisher):
        await runner.settle(Parting.STOPPED)
        await runner.close()
    await until(lambda: "Client subscriber closed its connection" in mosquitto.told(), what=mosquitto.told()[-2000:])
    assert "exceeded timeout" not in mosquitto.told()


async def test_without_its_subprotocol_the_broker_shows_an_error(bench: Bench, mosquitto: Server) -> None:
    await mosquitto.start()
    wanted = request(b"subscriber", SUBSCRIBE) | {"subprotocols": ["v12.stomp"]}
    _, lease = bench.run(mosquitto.url("/mqtt"), **wanted)
    await until(lambda: lease.state == "BACKING_OFF")
    assert lease.statuses[-1]["reason"].startswith("tcp: the connection ended before the handshake's answer")
