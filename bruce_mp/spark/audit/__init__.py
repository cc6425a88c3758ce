"""Compare the contents of Kafka with the ledgers of the sink, message by message."""
