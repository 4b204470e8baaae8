"""Raw tokens in an object store: S3 and what speaks like it, Google Cloud Storage, Azure, a mounted folder."""
