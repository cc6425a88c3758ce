"""Create, lock and adopt the slab."""
