"""Files of settings: read with limits, mistakes named by file and line."""
