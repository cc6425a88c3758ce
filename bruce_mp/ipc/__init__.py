"""ZeroMQ links and control messages between the processes, and the event loop that serves them."""
