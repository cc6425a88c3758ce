"""Metadata, topic numbers and partitions: the router gives each run to the dispatcher of its partition's leader."""
