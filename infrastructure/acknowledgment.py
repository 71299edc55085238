"""Say, beside a resource, which finding of the rule packs is accepted there and why."""

from aws_cdk import Acknowledgment, Validations
from constructs import Construct


def acknowledge(scope: Construct, rule: str, reason: str) -> None:
    """Accept the AwsSolutions finding `rule`, such as `ECS2` or `IAM5[Resource::*]`, on `scope` and below.

    The plugin's name is part of the id, so that the report lists the finding as accepted instead of dropping it.
    """
    Validations.of(scope).acknowledge(Acknowledgment(id=f"AwsSolutions::AwsSolutions-{rule}", reason=reason))
