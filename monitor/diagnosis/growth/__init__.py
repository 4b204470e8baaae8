"""Is K3 growing, and since which step: the rule, and what it said of each step."""
