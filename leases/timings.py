"""The durations of the lease protocol, and the rules that bind them."""

from dataclasses import dataclass, fields

ROUNDING = 1e-9
"""Seconds; 1.1 * 6 is not 6.6 in binary."""

SHORTEST, LONGEST = 0.01, 3600.0
"""Seconds: bounds of every duration. What lies beyond is a mistake of units."""

RETRY_SECONDS = 0.2
"""The longest pause between two attempts of one heartbeat."""

HURRIED_SECONDS = 0.25
"""With ids in the inbox, or a deadline already close, the next heartbeat follows after this long."""

ANSWER_SECONDS = 0.2
"""A good answer takes no longer: DynamoDB gives it within milliseconds, a stalled loop sees it a little later."""


class IllegalTimings(ValueError):
    """A combination of timings under which two workers could own one connection, or none could keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations in seconds, each named by its role. A combination that breaks a rule cannot be constructed.

    Raises `IllegalTimings`, naming the rule and the values.
    """

    heartbeat: float = 1.0
    """R: a session writes its next sequence number this long after the last one."""

    self_fence: float = 5.0
    """H: a holder emits nothing later than this after it *sent* its last acknowledged heartbeat."""

    drain: float = 1.0
    """D: nothing that was emitted before the deadline lands later than this after it."""

    takeover: float = 7.0
    """W: a judge that has watched a sequence number stand still for this long may declare the session dead."""

    judge_poll: float = 0.5
    """P: a judge reads the sessions that it judges this often."""

    rate_ratio: float = 1.10
    """ρ: the monotonic clocks of two machines run at rates within this ratio (NTP slews by at most 0.0005)."""

    call_timeout: float = 1.2
    """A heartbeat is repeated when it has had no answer for so long; one that comes later still counts."""

    give_up: float = 120.0
    """A session on hold for this long ends itself, since its frames are by then too old to be of use."""

    def __post_init__(self) -> None:
        if not self.rate_ratio >= 1:
            raise IllegalTimings(f"rate_ratio must be at least 1, but is {self.rate_ratio}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "rate_ratio" and not SHORTEST <= value <= LONGEST:
                raise IllegalTimings(f"{field.name} must be from {SHORTEST} to {LONGEST:g} seconds, but is {value}")
        needed = self.rate_ratio * (self.self_fence + self.drain)
        if self.takeover < needed - ROUNDING:
            raise IllegalTimings(
                f"takeover >= rate_ratio * (self_fence + drain) is broken: {self.takeover} < "
                f"{self.rate_ratio} * ({self.self_fence} + {self.drain}) = {needed:.3f}; two workers could emit at once"
            )
        longest = (self.self_fence - self.call_timeout) / 3
        if self.heartbeat > longest + ROUNDING:
            raise IllegalTimings(
                f"heartbeat <= (self_fence - call_timeout) / 3 is broken: {self.heartbeat} > "
                f"({self.self_fence} - {self.call_timeout}) / 3 = {longest:.3f}; two lost ones would fence the worker"
            )
        two_slow = max(self.heartbeat, HURRIED_SECONDS) + 2 * (self.call_timeout + RETRY_SECONDS + ANSWER_SECONDS)
        if self.self_fence < two_slow - ROUNDING:
            raise IllegalTimings(
                f"self_fence >= max(heartbeat, {HURRIED_SECONDS}) + 2 * (call_timeout + {RETRY_SECONDS} + "
                f"{ANSWER_SECONDS}) is broken: {self.self_fence} < max({self.heartbeat}, {HURRIED_SECONDS}) + 2 * "
                f"({self.call_timeout} + {RETRY_SECONDS} + {ANSWER_SECONDS}) = {two_slow:.3f}; "
                "two attempts in a row without an answer would put the worker on hold"
            )
        if self.judge_poll < ANSWER_SECONDS:
            raise IllegalTimings(
                f"judge_poll >= {ANSWER_SECONDS} is broken: {self.judge_poll} < {ANSWER_SECONDS}; "
                "any slower answer would interrupt every observation"
            )
        blind = 3 * self.heartbeat + self.judge_poll
        if self.takeover < blind - ROUNDING:
            raise IllegalTimings(
                f"takeover >= 3 * heartbeat + judge_poll is broken: {self.takeover} < 3 * {self.heartbeat} + "
                f"{self.judge_poll} = {blind:.3f}; a judge could take its own blindness for another's death"
            )
        if self.judge_poll * 2 > self.takeover:
            raise IllegalTimings(
                f"2 * judge_poll <= takeover is broken: 2 * {self.judge_poll} > {self.takeover}; "
                "no observation could complete"
            )

    @property
    def takeover_ms(self) -> int:
        """W in milliseconds, as the session row carries it: a judge uses the holder's value, never its own."""
        return round(self.takeover * 1000)
