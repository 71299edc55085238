"""The emulator as the AWS SDK sees it: an endpoint, credentials that mean nothing, one region and account."""

from dataclasses import dataclass, field

import boto3
from botocore.config import Config

REGION = "us-east-1"
ACCOUNT = "000000000000"
ACCESS_KEY = "local"
SECRET_KEY = "local"


def _session() -> boto3.Session:
    return boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION)


@dataclass(frozen=True, slots=True)
class Aws:
    """Where the emulator listens."""

    endpoint: str
    session: boto3.Session = field(default_factory=_session, compare=False, repr=False)
    """Takes neither credentials nor region from the user's own configuration."""

    @property
    def environment(self) -> dict[str, str]:
        """All that tells a process that it talks to the emulator: what the SDKs read, nothing of ours."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def config(self) -> Config:
        """Bounded calls: on one machine, what takes longer than this does not come."""
        return Config(connect_timeout=2, read_timeout=30, retries={"total_max_attempts": 3, "mode": "standard"})
