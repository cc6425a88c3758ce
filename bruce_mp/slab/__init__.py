"""The slab: its layout, chunks, runs, tables, process rows, recovery and spill files."""
