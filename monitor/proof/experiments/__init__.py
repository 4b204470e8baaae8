"""Search for the setting that causes the mismatch, with its measured arms."""
