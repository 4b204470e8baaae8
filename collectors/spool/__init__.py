"""Segments on disk: wire contract, durable writes, and reads that verify the content."""
