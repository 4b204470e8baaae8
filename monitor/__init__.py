"""What happened: store, ingest, join, metric jobs and the service that runs them."""
