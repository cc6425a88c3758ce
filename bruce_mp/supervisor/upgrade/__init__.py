"""Replace the running code without stopping the daemon."""
