"""Runs that other programs recorded, brought in through the spool like everything else.

`formats` names what can be read; `importing` writes it into the spool, each piece once; `rows` builds and checks the
records.
"""
