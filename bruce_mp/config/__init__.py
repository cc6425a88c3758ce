"""The configuration: its settings, their checks, and the file."""
