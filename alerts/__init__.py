"""Evaluation of alerts and delivery of notifications."""
