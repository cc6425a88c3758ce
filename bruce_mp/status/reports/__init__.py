"""Discard reports, and the files that the status process writes."""
