"""Backing a home up, putting a backup back, making a store again from raw tokens, and checking one against its
files."""
