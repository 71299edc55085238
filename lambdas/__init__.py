"""Thin handlers, each with its logic in plain modules beside it."""
