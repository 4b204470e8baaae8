"""Each page of the dashboard, one file: what it reads, what it shows, what one can do. `draw` is where to begin."""
