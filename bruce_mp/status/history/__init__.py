"""Readings of counters over time."""
