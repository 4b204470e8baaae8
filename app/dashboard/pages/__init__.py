"""Each page of the dashboard, one file: what it reads, what it makes of that as plain data, and `draw`. Streamlit is
known to `draw` and what it calls alone."""
