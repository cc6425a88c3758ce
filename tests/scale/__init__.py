"""Many daemons on one cluster: the requests that starts, deaths and restarts cause, second by second.

`hosts` has a host, with the real cores of router and dispatchers on a simulated cluster; `scenarios` has the events and
the counts. `scripts/simulate` runs all of them.
"""
