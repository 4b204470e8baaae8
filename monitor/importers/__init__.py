"""Import of files with log-probs of other programs, through the spool.

`reading` parses a file, `frameworks` has the column names of each framework, and `importing` writes the rows as
segments exactly once.
"""
