"""Adapters: one module per training framework, imported on demand.

An adapter turns a framework's batches into `Recorder` calls. It checks the framework's version and methods first,
leaves an unknown one unchanged, and never alters its computation unless a correction was requested. Problems become
counted health records.
"""
