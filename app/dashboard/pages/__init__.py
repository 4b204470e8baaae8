"""The pages of the dashboard, one per file. `draw` is the entry point."""
