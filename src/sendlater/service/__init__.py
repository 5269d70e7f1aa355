"""The service: what must run, started, watched and stopped."""
