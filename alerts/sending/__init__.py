"""Delivery of stored messages to channels: the outbox, delivery, secrets, wording, the channels."""
