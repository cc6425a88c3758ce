"""The benchmark: what a message costs, as a multiple of what receiving it costs a plain loop.

`scripts/bench` runs it; `docs/performance.md` says how to read it.

* `cases` is the table of what is measured; a new case is a new row.
* `programs/` holds the sender and the plain receiver, in C and, for machines without a compiler, in Python.
* `plain` and `daemon` make one run each; `session` interleaves them and keeps to the time; `cost` reads CPU and memory.
* `results` says what a run brought and when a figure is refused; `table` and `baseline` show it.
"""
