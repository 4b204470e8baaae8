"""Data of single pages beside step metrics: tokens, tokenizers, slices, other homes, SQL."""
