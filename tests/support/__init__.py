"""What tests share.  Importable as `support.x`, because pytest and mypy have `tests/` on their path."""
