"""Embedded Kafka broker that keeps its records in memory and injects faults on command.

`bruce dev-broker`, the demo and the tests use it; applications can use it in their own tests. The parts, from the
inside out:

    codes, batch, producers     checks of a record batch before the append
    log, cluster                partitions, topics, brokers, leaders: all state, no input or output
    faults, statistics          scripted faults and counters, as data
    apis/                       one file per Kafka API: a request in, a response out
    wire                        frames to requests, responses to frames (kafka-python's schemas)
    commands, arguments         commands of the control channel, their execution, and their form on a command line
    server, process             the only files of the broker that touch the operating system
    control, control_command    clients: `DevBroker` for tests, `bruce dev-broker control`

The broker behaves as Kafka 4.x does, with two deliberate exceptions. It refuses any bytes after the one record batch of
a partition. A partition has one log that every broker can lead, so an election loses nothing.
"""
