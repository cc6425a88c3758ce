"""The issuers of `bruce token`."""
