"""Delivery: what falls due, to its target topic."""
