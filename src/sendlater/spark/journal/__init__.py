"""Journals: inboxes that are compacted topics; the store is filled from them."""
