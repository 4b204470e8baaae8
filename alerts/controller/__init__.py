"""The correction controller: when to switch masked importance sampling on, and when to refuse."""
