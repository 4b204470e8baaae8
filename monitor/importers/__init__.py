"""Files with log-probs that other programs wrote, brought in through the spool like everything else.

`reading` takes a file apart, `frameworks` says what each framework calls its columns, `importing` writes the rows as
segments, each once.
"""
