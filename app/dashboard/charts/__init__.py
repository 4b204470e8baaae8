"""Charts and tiles: columns in, plain data for the browser out. Pure."""
