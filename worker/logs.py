"""Structured logs of the worker: one JSON object per line on stdout, with the keys of `telemetry.logs`.

Never log a URL's query, a header's value, an onOpen payload, or the text of an error that may quote one.
"""

from aws_lambda_powertools import Logger


def logger() -> Logger:
    """The worker's logger. Service and level come from POWERTOOLS_SERVICE_NAME and POWERTOOLS_LOG_LEVEL."""
    return Logger(utc=True, use_rfc3339=True, location="%(module)s.%(funcName)s:%(lineno)d")
