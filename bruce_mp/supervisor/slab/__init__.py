"""Create, lock and adopt the slab and its journal, and count the messages that the slab holds."""
