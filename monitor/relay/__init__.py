"""The receiving side of relays: segments, marks and reports from nodes that share no disk with the service."""
