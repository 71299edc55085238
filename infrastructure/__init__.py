"""The AWS resources of the fleet, as CDK stacks by lifecycle: data, api, fleet, observability.

Names of tables, queues and streams exist once, here, as references: the running parts read them from their environment.
Nothing in this package imports code that runs in the fleet, apart from the constants of `telemetry`.
"""
