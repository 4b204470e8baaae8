"""State of live runs in memory: segments in, step metrics out.

Each step is a pure function of the set of its records.
"""
