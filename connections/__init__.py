"""The domain: a validated connection request, its stored rows and observed status, and the URL policy."""
