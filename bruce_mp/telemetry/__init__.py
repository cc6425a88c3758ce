"""Counters, books, logs, latencies, and what processes report to the status process."""
