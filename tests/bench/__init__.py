"""The benchmark: the cost of a message in the daemon, as a multiple of its cost in a plain receive loop.

`scripts/bench` runs it; `docs/performance.md` says how to read it.

* `cases` is the table of measured cases; a new case is a new row.
* `programs/` holds the sender and the plain receiver, in C and, for machines without a compiler, in Python.
* `plain` and `daemon` make one run each; `session` interleaves them and keeps to the time; `cost` reads CPU and memory.
* `results` has the results of runs and the reasons to refuse a figure; `table` and `baseline` show it.
"""
