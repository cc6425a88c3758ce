"""Destinations of copies of messages: the discard file, the debug files, and the dead letter topic."""
