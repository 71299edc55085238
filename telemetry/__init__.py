"""Names that the running parts and the infrastructure must agree on: constants only, no behaviour, no dependency."""
