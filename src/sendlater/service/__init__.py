"""The service: starts, watches and stops what must run."""
