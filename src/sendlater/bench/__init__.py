"""Load tests through real inbox and target topics, and a ledger that counts every message."""
