"""Sockets that the supervisor binds or inherits, and hands to its processes."""
