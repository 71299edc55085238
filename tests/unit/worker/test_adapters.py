"""The adapters that come with the worker."""

from worker.adapters import ADAPTERS, Answer, EngineIo


def test_engine_io_answers_its_heartbeat_and_nothing_else() -> None:
    assert list(EngineIo().received("2")) == [Answer("3")]
    assert not list(EngineIo().received("2probe"))
    assert not list(EngineIo().received(b"2"))


def test_it_can_be_named_in_a_request() -> None:
    assert ADAPTERS["engine.io"] is EngineIo
