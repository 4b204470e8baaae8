"""Several services that each have a share of the runs: who has which, and how a run moves from one to another."""
