"""The script of a session. In a folder of its own: Streamlit would take modules of a folder `pages` beside it for
pages, which every visitor could open past what is asked here."""
