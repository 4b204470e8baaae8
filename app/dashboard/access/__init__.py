"""Rights to look at the dashboard and to act from it. Knows nothing of Streamlit; `views/acting.py` and
`views/login.py` ask it."""
