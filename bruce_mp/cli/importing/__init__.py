"""Conversion of a Dory or Bruce configuration to TOML.

`convert` is the entry point. The module `settings` has the old settings that map to one new setting, `sections`
converts the others, and `draft` collects the result. *Old* means of Dory or Bruce.
"""
