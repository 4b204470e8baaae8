"""The view of a run that terminal, JSON, page, report and messages share."""
