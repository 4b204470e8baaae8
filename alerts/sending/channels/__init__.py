"""Channels of notifications, one module each."""
