"""Start, watch, reload, upgrade and stop the daemon's processes."""
