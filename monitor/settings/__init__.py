"""Settings files, read with limits and with errors by file and line."""
