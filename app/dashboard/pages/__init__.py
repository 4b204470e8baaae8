"""What stands on each page, as blocks of words and tables. Pure."""
