"""What follows from what the upstream saw."""

import math

from local.upstream import Socket
from local.witness import Report

PATH = "/feed/1"


def report(*sockets: Socket) -> Report:
    return Report({PATH: sockets}, {PATH: 0})


def socket(port: int, opened: float, closed: float | None = None) -> Socket:
    return Socket(PATH, port, opened, subscribed=opened + 0.1, closed=closed)


def test_a_fault_ends_delivery_when_it_strikes_though_the_kernel_keeps_the_socket_open() -> None:
    seen = report(socket(1, opened=0.0), socket(2, opened=18.0))

    assert math.isclose(seen.outage(PATH, 10.0, planned=False), 8.1)
    assert seen.crowded() == {PATH}


def test_a_planned_move_ends_delivery_when_the_old_socket_is_closed() -> None:
    assert report(socket(1, 0.0, closed=12.0), socket(2, 11.0)).outage(PATH, 10.0, planned=True) == 0.0
    assert math.isclose(report(socket(1, 0.0, closed=11.0), socket(2, 12.0)).outage(PATH, 10.0, planned=True), 1.1)


def test_an_outage_lasts_until_there_is_a_subscribed_successor() -> None:
    silent = Socket(PATH, 2, 11.0)

    assert report(socket(1, 0.0, closed=10.0), silent).outage(PATH, 10.0, planned=False) == math.inf
    assert report(socket(1, 0.0, closed=10.0), silent).served() == set()


def test_a_path_is_disturbed_by_a_socket_opened_or_closed_since() -> None:
    assert report(socket(1, 0.0)).changed(10.0) == set()
    assert report(socket(1, 0.0, closed=11.0)).changed(10.0) == {PATH}
    assert report(socket(1, 0.0), socket(2, 11.0)).changed(10.0) == {PATH}


def test_two_sockets_are_tolerated_only_for_a_while() -> None:
    assert report(socket(1, 0.0, closed=13.0), socket(2, 11.0)).long_overlaps(10.0) == set()
    assert report(socket(1, 0.0, closed=20.0), socket(2, 11.0)).long_overlaps(10.0) == {PATH}
    assert report(socket(1, 0.0), socket(2, 11.0)).long_overlaps(10.0) == {PATH}


def test_a_connection_belongs_to_the_port_of_its_open_socket() -> None:
    seen = report(socket(1, 0.0, closed=5.0), socket(2, 6.0))

    assert seen.paths_of({1}) == set()
    assert seen.paths_of({2}) == {PATH}
