"""Modules that tests share; importable as `support.x`, because pytest and mypy have `tests/` on their path."""
