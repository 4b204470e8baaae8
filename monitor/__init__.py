"""Record of events: store, ingest, join, metric jobs, and the service that runs them."""
