"""Conversion of a Dory or Bruce configuration.

`old_xml` reads the XML file, `command_line` the command line. `settings` is the table of all settings that map one to
one, and `sections` converts the others. `draft` collects settings and notes, validates them and writes TOML.
"""
