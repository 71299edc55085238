"""A look-alike of the ECS task metadata endpoint, version 4: the part of `GET <base>/task` that says who a task is.

Source: Amazon ECS Developer Guide, "Task metadata endpoint version 4 for tasks on Fargate".
"""

import json
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class MetadataServer:
    """Serves the metadata of every task that was added, from a thread of this process."""

    def __init__(self) -> None:
        self._tasks: dict[str, Mapping[str, Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="metadata", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, task_arn: str, *, cluster: str, family: str, revision: int) -> str:
        """Serve a task; returns what ECS_CONTAINER_METADATA_URI_V4 is to be for it."""
        path = f"/v4/{task_arn.rpartition('/')[2]}"
        self._tasks[path] = {
            "Cluster": cluster,
            "TaskARN": task_arn,
            "Family": family,
            "Revision": str(revision),
            "DesiredStatus": "RUNNING",
            "KnownStatus": "RUNNING",
            "LaunchType": "FARGATE",
        }
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        tasks = self._tasks

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                base, _, leaf = self.path.rpartition("/")
                known = leaf == "task" and base in tasks
                body = json.dumps(tasks[base] if known else {}).encode()
                self.send_response(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
                """Say nothing."""

        return Handler
