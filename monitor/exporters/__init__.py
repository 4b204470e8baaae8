"""Export of runs: tables for notebooks, and a bundle for another logprobe."""
