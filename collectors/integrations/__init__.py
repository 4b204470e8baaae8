"""Adapters: one module per training framework, each imported on demand only.

An adapter turns a framework's batches into `Recorder` calls. It looks at the framework's version and methods first,
leaves an unknown one as it was, and never changes what the framework computes, unless a correction was asked for.
Problems become counted health records.
"""
