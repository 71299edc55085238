"""The HTTP API as a caller with credentials sees it: every request is signed (Signature Version 4)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session

from local.aws import ACCESS_KEY, REGION, SECRET_KEY

SERVICE = "execute-api"
TIMEOUT_SECONDS = 30
POOL = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers with lower-case names, and the parsed body (None if there is none)."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Api:
    """A client. It may be used from several threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = URLLib3Session(timeout=TIMEOUT_SECONDS, max_pool_connections=POOL)
        self._signer = SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), SERVICE, REGION)

    def call(self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request, `path` with its query; whatever the status is, it is the answer."""
        request = AWSRequest(
            method=method,
            url=f"{self._url}{path}",
            data=b"" if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        self._signer.add_auth(request)
        answer = self._http.send(request.prepare())
        text = answer.content.decode()
        return Answer(
            answer.status_code,
            {name.lower(): value for name, value in answer.headers.items()},
            json.loads(text) if text else None,
        )


def curl_line(api_url: str) -> str:
    """A command that does the same by hand."""
    return (
        f"curl --aws-sigv4 aws:amz:{REGION}:{SERVICE} --user {ACCESS_KEY}:{SECRET_KEY} "
        f"-H 'Content-Type: application/json' -d '{{\"url\": \"ws://127.0.0.1:8765/\"}}' {api_url}/connections"
    )
