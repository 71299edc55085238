"""Output to an SQS FIFO queue, one message group per connection."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from leases.dynamodb import UNREADABLE
from worker.records import Entry, Limits
from worker.sinks import TAKEN, Outcome, SinkUnavailable, Verdict, refuse_call
from worker.transport import permission

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

CALL_REFUSALS = frozenset({"InvalidMessageContents", "AWS.SimpleQueueService.BatchRequestTooLong"})
"""Error codes of a whole call that say that the content is at fault. Whatever else goes wrong may pass."""

ESCAPES = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}
"""Characters that JSON leaves as they are and SQS refuses (AWS: API_SendMessageBatch). They occur in strings only."""


class SqsFifoSink:
    """SendMessageBatch, once per call. A message is an entry: consecutive records of one connection as JSON lines.

    The deduplication id names exactly the records in a message, so that an attempt of unknown outcome that is repeated
    as it was is dropped by the queue, and one that is repeated with more records behind is not.
    """

    limits = Limits(
        # API_SendMessageBatch: 10 messages, 1 MiB for all of them together. Their sizes are as sent, in UTF-8.
        batch_entries=10,
        batch_bytes=1_000_000,
        entry_bytes=100_000,
        record_bytes=1_000_000,
        part_bytes=700 * 1024,
    )

    def __init__(self, client: "SQSClient", queue_url: str) -> None:
        """`client` makes one attempt per call and is fenced (`worker.transport`)."""
        self._client = client
        self._queue_url = queue_url

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        """See `worker.sinks.Sink`."""
        messages: Any = [_message(position, entry) for position, entry in enumerate(entries)]
        verdicts = dict.fromkeys(range(len(entries)), Verdict(Outcome.AGAIN, "no result"))
        try:
            with permission(may_send):
                answer = self._client.send_message_batch(QueueUrl=self._queue_url, Entries=messages)
            for sent in answer.get("Successful", ()):
                verdicts[int(sent["Id"])] = TAKEN
            for failed in answer.get("Failed", ()):
                outcome = Outcome.REFUSED if failed.get("SenderFault") else Outcome.AGAIN
                verdicts[int(failed["Id"])] = Verdict(outcome, failed.get("Code", "no code"))
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "no code")
            if code in CALL_REFUSALS:
                return refuse_call(entries, code)
            raise SinkUnavailable(code) from error
        except (BotoCoreError, *UNREADABLE) as error:
            raise SinkUnavailable(type(error).__name__) from error
        return [verdicts[position] for position in range(len(entries))]


def _message(position: int, entry: Entry) -> dict[str, str]:
    return {
        "Id": str(position),
        "MessageBody": entry.data.decode().translate(ESCAPES),
        "MessageGroupId": entry.header.connection,
        "MessageDeduplicationId": f"{entry.header.connection}.{entry.header.epoch}.{entry.first_seq}-{entry.last_seq}",
    }
