"""A deterministic simulation in which the code of `leases` runs unchanged, under every fault that its design names."""
