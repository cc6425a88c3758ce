"""The wire format of programs that send to the daemon: messages, barriers, fences."""
