"""Service process with jobs, Flight endpoint and health endpoint."""
