"""The dashboard: its data, figures and pages."""
