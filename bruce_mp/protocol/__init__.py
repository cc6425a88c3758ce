"""Wire formats without input or output: Kafka's, and that of programs that send to the daemon."""
