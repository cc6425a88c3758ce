"""Histories of the daemon's counters, over the last minute up to the last month."""
