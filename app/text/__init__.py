"""What commands, pages and reports say in the same words, and how they write numbers and tables."""
