"""The benchmark of a broker's death: its effect on the partitions of the other brokers.

`scripts/bench outage` runs it; `docs/performance.md` says how to read it.

* `load` defines numbered messages at an even pace, each bound to a partition by its key; `sender` sends them.
* `sites` are the places where a broker of three dies: the embedded brokers, or real ones.
* `watcher` consumes every record as it arrives; `drive` runs all steps in order and reads all records back.
* `figures` computes figures from the observations, or the reasons to refuse them; `table` shows them.
"""
