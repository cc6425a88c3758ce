"""Start, watch, restart and stop the daemon's processes."""
