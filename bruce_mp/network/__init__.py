"""Connections to brokers: sockets, name resolution, TLS, and SASL credentials."""
