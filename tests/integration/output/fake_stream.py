"""A stream behind a socket that answers PutRecords as a test tells it: what no emulator can be made to do."""

import json
import threading
from base64 import b64decode
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import orjson

Record = dict[str, Any]
Answer = Callable[[list[Record]], tuple[int, Any]]
"""From the records of a request to a status and a body. It says of each record in `Records` whether it was taken."""

TAKEN = {"SequenceNumber": "1", "ShardId": "shardId-000000000000"}


def failed(code: str) -> Record:
    return {"ErrorCode": code, "ErrorMessage": "as told"}


def take(records: list[Record]) -> tuple[int, Any]:
    return 200, {"FailedRecordCount": 0, "Records": [TAKEN] * len(records)}


class FakeStream:
    """Serves on loopback in a thread of its own. Answers as scripted, then takes everything."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = deque(answers)
        self.taken: list[Record] = []
        self.calls = 0
        self._lock = threading.Lock()
        stream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, body = stream._answer(request["Records"])
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _answer(self, records: list[Record]) -> tuple[int, Any]:
        with self._lock:
            self.calls += 1
            status, body = (self.answers.popleft() if self.answers else take)(records)
            for record, result in zip(records, body.get("Records", ()), strict=False):
                if "SequenceNumber" in result:
                    self.taken.append(record)
        return status, body

    def lines(self, connection: str) -> list[Record]:
        """The output records of a connection that were taken, in order."""
        return [
            orjson.loads(line)
            for record in self.taken
            if record["PartitionKey"] == connection
            for line in b64decode(record["Data"]).splitlines()
        ]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
