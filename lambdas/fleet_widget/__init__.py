"""A dashboard widget that shows the live fleet."""
