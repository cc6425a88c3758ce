"""Kafka's wire format and the sans-IO connection to a broker."""
