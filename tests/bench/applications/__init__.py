"""The cost of a message to a whole host: the application and the daemon, beside Kafka clients in the process.

`senders` builds an application for each client library; `measure` runs one; `results` has medians and the table.
"""
