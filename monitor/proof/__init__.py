"""Proof by experiment: rescoring of recorded tokens on a fresh engine and a plain forward pass to find the deviating
side.
"""
