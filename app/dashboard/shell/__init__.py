"""The script of a session.

The script has a separate folder, because Streamlit would serve the modules of a sibling folder `pages` without our
checks.
"""
