"""`bruce import-config`: the configuration of a Dory or Bruce daemon, as ours.

`old_xml` reads the XML file, `flags` the command line; `settings` is the table of everything that maps one to one,
`sections` does the rest; `draft` gathers it, with notes, checks it and writes TOML.
"""
