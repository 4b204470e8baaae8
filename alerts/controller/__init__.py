"""Correction controller: decides when to enable masked importance sampling and when to refuse."""
