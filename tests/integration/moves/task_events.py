"""What ECS tells EventBridge of a task that has stopped, in the shape of the developer guide.

Source: Amazon ECS Developer Guide, "Task state change events"; API reference, "Task" and "Container" (`exitCode` is
absent unless somebody saw the container end).
"""

from typing import Any

ACCOUNT_ARN = "arn:aws:ecs:us-east-1:111122223333"


def stopped(task_arn: str, exit_code: int | None) -> dict[str, Any]:
    """The event of a task whose container ended with a code, or whose host was lost, so that nobody knows."""
    container = {
        "containerArn": f"{ACCOUNT_ARN}:container/fleet/0f6f/cf159fd6",
        "lastStatus": "STOPPED",
        "name": "worker",
        "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/assets:5f4c",
        "imageDigest": "sha256:74b2",
        "runtimeId": "ad64cbc7",
        "taskArn": task_arn,
        "networkInterfaces": [{"attachmentId": "1789bcae", "privateIpv4Address": "10.0.0.139"}],
        "cpu": "256",
    }
    lost = {"stopCode": "TerminationNotice", "stoppedReason": "The host of the task was lost"}
    ended = {"stopCode": "EssentialContainerExited", "stoppedReason": "Essential container in task exited"}
    return {
        "version": "0",
        "id": "3317b2af-7005-947d-b652-f55e762e571a",
        "detail-type": "ECS Task State Change",
        "source": "aws.ecs",
        "account": "111122223333",
        "time": "2026-01-23T17:57:58Z",
        "region": "us-east-1",
        "resources": [task_arn],
        "detail": {
            "attachments": [
                {
                    "id": "1789bcae",
                    "type": "eni",
                    "status": "DELETED",
                    "details": [{"name": "privateIPv4Address", "value": "10.0.0.139"}],
                }
            ],
            "attributes": [{"name": "ecs.cpu-architecture", "value": "arm64"}],
            "availabilityZone": "us-east-1c",
            "clusterArn": f"{ACCOUNT_ARN}:cluster/fleet",
            "connectivity": "CONNECTED",
            "connectivityAt": "2026-01-23T17:30:38.453Z",
            "containers": [container if exit_code is None else {**container, "exitCode": exit_code}],
            "cpu": "256",
            "createdAt": "2026-01-23T17:30:34.402Z",
            "desiredStatus": "STOPPED",
            "enableExecuteCommand": False,
            "ephemeralStorage": {"sizeInGiB": 20},
            "executionStoppedAt": "2026-01-23T17:57:57.103Z",
            "group": "service:fleet",
            "lastStatus": "STOPPED",
            "launchType": "FARGATE",
            "memory": "1024",
            "overrides": {"containerOverrides": [{"name": "worker"}]},
            "platformVersion": "1.4.0",
            "pullStartedAt": "2026-01-23T17:30:52.103Z",
            "pullStoppedAt": "2026-01-23T17:30:55.103Z",
            "startedAt": "2026-01-23T17:30:58.103Z",
            "startedBy": "ecs-svc/1234567890123456789",
            "stoppingAt": "2026-01-23T17:57:56.103Z",
            "stoppedAt": "2026-01-23T17:57:58.103Z",
            "taskArn": task_arn,
            "taskDefinitionArn": f"{ACCOUNT_ARN}:task-definition/fleet:7",
            "updatedAt": "2026-01-23T17:57:58.103Z",
            "version": 7,
            **(lost if exit_code is None else ended),
        },
    }
