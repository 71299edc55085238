"""Figures are shown whether or not a test fails; the logs of a failed module stay."""

from tests.chaos.conftest import logs_of_failures, show

__all__ = ["logs_of_failures", "show"]
