"""Keep a journal of held messages on disk, and restore them from it after a power failure."""
