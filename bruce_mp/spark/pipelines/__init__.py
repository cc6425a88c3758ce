"""Spark jobs beside the sink: backfill, replay, fleet statistics and discard tables."""
