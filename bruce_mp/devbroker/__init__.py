"""An embedded Kafka broker that keeps its records in memory and misbehaves on command.

It serves `bruce dev-broker`, the demo, and the tests as their fault injector.  The parts, from the inside out:

    codes, batch, producers     what a broker checks before it appends a record batch
    log, retention, cluster     partitions, topics, brokers, leaders: all state, no input or output
    faults, statistics          scripted misbehaviour and counters, as data
    apis/                       one file per Kafka API: a request in, a response out
    wire                        frames to requests, responses to frames (kafka-python's schemas)
    commands                    what can be asked for over the control channel, and doing it
    server, process             the only files that touch the operating system
    control, records            the client for tests: starts the process, injects faults, reads back what was stored

Where it is in doubt it does what Kafka 4.x does, with two deliberate exceptions: it refuses any bytes behind the one
record batch of a partition, and a partition has one log that every broker can lead, so nothing is lost in an election.
"""
