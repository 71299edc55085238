"""Counts the fleet every minute, and puts right what every worker missed."""
