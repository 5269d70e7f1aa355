"""Spark does the moving: intake from inboxes to the store, delivery from the store to targets."""
