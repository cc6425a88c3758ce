"""Serve the status pages, and write the reports and files of the daemon."""
