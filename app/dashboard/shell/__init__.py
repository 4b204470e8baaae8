"""The script of a session.

It has a folder of its own because Streamlit serves the modules of a sibling folder `pages` without our checks.
"""
