"""The protocol of clients, the programs that send messages to the daemon: messages, barriers, inquiries, attempts."""
