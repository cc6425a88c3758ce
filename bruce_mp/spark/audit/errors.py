"""Errors in the inputs of an audit; the command exits with their text."""

from __future__ import annotations

from bruce_mp.errors import BruceError

__all__ = ["AuditInputError"]


class AuditInputError(BruceError):
    """An audit cannot begin because of its topics or paths."""
