"""Loads through the real inbox and target topics, and a ledger that must balance."""
