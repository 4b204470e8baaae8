"""Delivery of stored messages: outbox, delivery, secrets, wording and channels."""
