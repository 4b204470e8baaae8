"""Rights of users to view the dashboard and to act from it, independent of Streamlit.

`acting.py` applies them to a session.
"""
