"""The processes of one data directory, and their supervisor."""

import os

# Before numpy is imported. The matrices of a diagnosis are small, and OpenBLAS's helpers spin for a while after each
# product: beside a busy trainer that is processor time for nothing, on a machine of 64 cores that of 63.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
