"""Shipping of a node's spool segments to a bucket or to an actor of a Ray cluster.

A segment stays on the node until it is safe at its destination.
"""
