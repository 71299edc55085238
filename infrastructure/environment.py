"""The environment contract of the running parts: the one place where their variables are named and filled."""

from infrastructure.data import DataStack
from infrastructure.settings import Settings
from telemetry.metrics import NAMESPACE


def common(settings: Settings, data: DataStack) -> dict[str, str]:
    """Variables of every Lambda function and of the worker."""
    return {
        "TABLE_NAME": data.table.table_name,
        "OWNER_INDEX": data.owner_index,
        "QUEUE_URL": data.queue.queue_url,
        "ALLOWED_HOSTS": ",".join(settings.allowed_hosts),
        "SECRET_PREFIX": settings.secret_prefix,
        "POWERTOOLS_SERVICE_NAME": settings.name,
        "POWERTOOLS_METRICS_NAMESPACE": NAMESPACE,
        "POWERTOOLS_LOG_LEVEL": settings.log_level,
    }


def worker(settings: Settings, data: DataStack) -> dict[str, str]:
    """Variables of a worker container. Region, credentials and task metadata come from Fargate itself."""
    return common(settings, data) | {
        "STREAM_NAME": data.stream.stream_name,
        "WORKER_CAPACITY": str(settings.worker_capacity),
        "WORKER_BUFFER_BYTES": str(settings.worker_buffer * 1024 * 1024),
        "WORKER_PROCESSES": str(settings.worker_processes),
        "WORKER_DRAIN_SECONDS": str(settings.worker_drain_seconds),
        "WORKER_CONNECT_RATE": f"{settings.worker_connect_rate:g}",
        "WORKER_GROUP_CONNECT_RATE": f"{settings.worker_group_connect_rate:g}",
        "LEASE_HEARTBEAT_SECONDS": f"{settings.lease_heartbeat_seconds:g}",
        "LEASE_SELF_FENCE_SECONDS": f"{settings.lease_self_fence_seconds:g}",
        "LEASE_DRAIN_SECONDS": f"{settings.lease_drain_seconds:g}",
        "LEASE_TAKEOVER_SECONDS": f"{settings.lease_takeover_seconds:g}",
        "LEASE_JUDGE_POLL_SECONDS": f"{settings.lease_judge_poll_seconds:g}",
    }
