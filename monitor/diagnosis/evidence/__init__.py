"""What a diagnosis looks at: read from the store, and computed from what was read."""
