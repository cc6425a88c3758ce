"""Send the messages of one broker's partitions in record batches, and settle them by its responses."""
