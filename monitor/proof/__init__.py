"""Proof by experiment: scores recorded tokens again, on a fresh engine and a plain forward pass, and says which side
deviates."""
