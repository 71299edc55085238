"""The default sink: a Kinesis data stream, partitioned by connection."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from leases.dynamodb import UNREADABLE
from worker.records import STREAM_LIMITS, Entry
from worker.sinks import TAKEN, Outcome, SinkUnavailable, Verdict, refuse_call
from worker.transport import permission

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

REFUSALS = frozenset(
    {"InvalidArgumentException", "RequestEntityTooLargeException", "SerializationException", "ValidationException"}
)
"""Error codes that say that the content is at fault. Whatever else goes wrong may pass."""


class KinesisSink:
    """PutRecords, once per call: the pump retries, since only it knows whether the lease still allows that.

    PutRecords keeps no order and may fail in part (AWS: API_PutRecords), so a call carries one entry per connection.
    """

    limits = STREAM_LIMITS

    def __init__(self, client: "KinesisClient", stream: str) -> None:
        """`client` makes one attempt per call and is fenced (`worker.transport`); `stream` is a name."""
        self._client = client
        self._stream = stream

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        """See `worker.sinks.Sink`."""
        records: Any = [{"Data": entry.data, "PartitionKey": entry.header.connection} for entry in entries]
        try:
            with permission(may_send):
                answer = self._client.put_records(StreamName=self._stream, Records=records)
            verdicts = [_verdict(result) for result in answer.get("Records", ())[: len(entries)]]
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "no code")
            if code in REFUSALS:
                return refuse_call(entries, code)
            raise SinkUnavailable(code) from error
        except (BotoCoreError, *UNREADABLE) as error:
            raise SinkUnavailable(type(error).__name__) from error
        return verdicts + [Verdict(Outcome.AGAIN, "no result")] * (len(entries) - len(verdicts))


def _verdict(result: Any) -> Verdict:
    code = result.get("ErrorCode")
    if code is None and "SequenceNumber" in result:
        return TAKEN
    return Verdict(Outcome.REFUSED if code in REFUSALS else Outcome.AGAIN, code or "no result")
