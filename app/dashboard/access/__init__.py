"""Who may look at the dashboard and who may act from it. Knows nothing of Streamlit; `views/acting.py` and
`views/login.py` ask it."""
