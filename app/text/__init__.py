"""Words, numbers and tables that commands, pages and reports share."""
