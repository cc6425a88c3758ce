"""Conversion of a Dory or Bruce configuration to TOML.

`convert` calls the other modules. `old_xml` parses the XML file, and `structure` checks the elements. `settings` is the
table of the old settings that map to one new setting, and `sections` converts the others. `command_line` reads the
options of the old daemon, and `old_defaults` sets those of the old defaults that differ from ours. `old_values` reads
single values. `draft` collects settings and notes, validates them and writes TOML.
"""
