"""Encoding and decoding of Kafka's protocol and of the client protocol, without sockets or files."""
