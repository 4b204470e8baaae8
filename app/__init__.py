"""User interfaces: the command line and the Streamlit dashboard."""
