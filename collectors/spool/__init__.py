"""Segments on disk: the wire contract, durable writing, distrustful reading."""
