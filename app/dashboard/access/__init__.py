"""Rights to look at the dashboard and to act from it. Knows nothing of Streamlit; `acting.py` asks it."""
