"""The dashboard: what it reads, what it makes of it, and how it shows it."""
