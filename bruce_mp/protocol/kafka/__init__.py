"""Encoding and decoding of Kafka's requests and responses, and the sans-IO connection to a broker."""
