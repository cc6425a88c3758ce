"""Keep a journal of held messages on disk, and restore the messages after a power failure."""
