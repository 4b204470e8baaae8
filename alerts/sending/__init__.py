"""From a stored message to a channel: the outbox, delivery, secrets, wording, the channels."""
