"""Findings that people live with: accepting them, by command, page or policy."""
