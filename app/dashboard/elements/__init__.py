"""Pieces that several pages show, and links between pages. Pure."""
