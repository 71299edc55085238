"""Leases on DynamoDB: exactly one owner per connection, without synchronised clocks."""
