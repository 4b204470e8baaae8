"""A run on its way out: tables for notebooks, and a bundle that another logprobe opens."""
