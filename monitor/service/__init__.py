"""The service process: jobs, Flight endpoint, health."""
