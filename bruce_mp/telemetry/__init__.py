"""Counters, books, logs, latencies, and the reports of processes to the status process."""
