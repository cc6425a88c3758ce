"""Receive messages from datagram sockets and stream connections, and store them in the slab."""
