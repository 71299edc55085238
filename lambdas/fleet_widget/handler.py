"""Answers CloudWatch when a dashboard shows the widget."""

from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas import clients
from lambdas.fleet_widget.page import DESCRIPTION, render
from lambdas.sessions import sessions
from leases.conditions import Unknown

table = clients.table()


def handler(event: Mapping[str, Any], _: LambdaContext) -> str:
    """The widget's HTML, or its description where CloudWatch asks for that."""
    if event.get("describe"):
        return DESCRIPTION
    try:
        return render(list(sessions(table)))
    except Unknown:
        return "<p>The table does not answer.</p>"
