"""`bruce top`: the live view of a daemon in a terminal."""
