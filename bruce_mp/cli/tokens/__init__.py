"""The issuers of `bruce token`: OpenID Connect, and Amazon MSK with IAM."""
