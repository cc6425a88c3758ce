"""Embedded Kafka broker that keeps its records in memory and injects faults on command.

`bruce dev-broker`, the demo and the tests use it; applications can use it in their own tests. The modules, each after
the modules on which it is based:

    codes, batch, producers     error codes, and the checks of a record batch before it is appended
    log, cluster                the state: partitions, topics, brokers, leaders; without input and output
    faults, statistics          scripted faults and counters, as data
    apis/                       one module per Kafka API; its handler makes a response from a request
    wire                        decodes requests and encodes responses, with kafka-python's schemas
    commands, arguments         commands to the running broker: execution, and parsing from a command line
    server, process             sockets, tasks, signals: the only modules of the broker that use the operating system
    control, control_command    clients: `DevBroker` for tests, and `bruce dev-broker control`

The broker behaves as Kafka 4.x does, with two deliberate exceptions. It refuses a Produce request with bytes after the
first record batch of a partition. All brokers share the one log of a partition, so no change of the leader loses
records.
"""
