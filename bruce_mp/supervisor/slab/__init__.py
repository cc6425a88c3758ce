"""Create, lock and adopt the slab, the file that holds every message until Kafka has acknowledged it."""
