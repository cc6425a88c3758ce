"""Discards: settlement, reasons, reports, and the lines of the discard file."""
