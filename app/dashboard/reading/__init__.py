"""Data of single pages other than step metrics: tokens, tokenizers, slices, other data directories, SQL."""
