"""Discards: settlement, reasons, events, samples, reports, and the lines of the discard file."""
