"""What single pages read beside step metrics: tokens, tokenizers, slices, other homes, SQL."""
