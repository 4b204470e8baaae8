"""Channels of notifications, one module per channel."""
