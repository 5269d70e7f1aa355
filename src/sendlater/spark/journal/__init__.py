"""Journals: inboxes that are compacted topics, and the truth the store is filled from."""
