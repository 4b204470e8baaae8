"""Diagnosis: which layer is at fault, since which step, and what to do about it."""
