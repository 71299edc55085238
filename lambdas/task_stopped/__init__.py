"""Declares the sessions of a task dead once its container is proven to have exited."""
