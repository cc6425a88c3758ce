"""The benchmark of a broker's death: what happens to the partitions that it did not lead.

`scripts/bench outage` runs it; `docs/performance.md` says how to read it.

* `load` says what is sent: numbered messages at an even pace, each bound to a partition by its key; `sender` sends it.
* `sites` are the places where a broker of three dies: the embedded brokers, or real ones.
* `watcher` sees every record arrive while it happens; `drive` does it all in order and reads everything back.
* `figures` makes figures of what was seen, and says when there are none; `table` shows them.
"""
