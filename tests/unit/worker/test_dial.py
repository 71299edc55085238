"""Looking names up: once, however many ask."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from worker.dial import Resolver


class Lookups:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer = threading.Event()
        self.broken = False

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        assert self.answer.wait(20)
        if self.broken:
            raise OSError("no such name")
        return ["192.0.2.1"]


async def test_many_that_ask_at_once_share_one_look_up_and_its_answer_is_kept_for_a_while() -> None:
    lookups = Lookups()
    with ThreadPoolExecutor(4) as executor:
        resolver = Resolver(executor, lookups, ttl=0.2)
        asking = [asyncio.create_task(resolver.addresses("a.example", 443)) for _ in range(150)]
        await asyncio.sleep(0)
        asking[0].cancel()
        lookups.answer.set()
        assert await asyncio.gather(*asking[1:]) == [["192.0.2.1"]] * 149
        await resolver.addresses("a.example", 443)
        assert lookups.asked == ["a.example"]
        await asyncio.sleep(0.3)
        await resolver.addresses("b.example", 443)
        assert list(resolver._known) == ["b.example"]
        await resolver.addresses("a.example", 443)
    assert lookups.asked == ["a.example", "b.example", "a.example"]


async def test_a_failure_is_told_to_all_and_not_remembered() -> None:
    lookups = Lookups()
    lookups.broken = True
    lookups.answer.set()
    with ThreadPoolExecutor(4) as executor:
        resolver = Resolver(executor, lookups)
        both = await asyncio.gather(
            resolver.addresses("a.example", 443), resolver.addresses("a.example", 443), return_exceptions=True
        )
        assert [type(error) for error in both] == [OSError, OSError]
        lookups.broken = False
        assert await resolver.addresses("a.example", 443) == ["192.0.2.1"]
    assert len(lookups.asked) == 2
