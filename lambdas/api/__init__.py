"""The HTTP API of the fleet."""
