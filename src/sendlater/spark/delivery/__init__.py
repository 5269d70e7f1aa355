"""Delivery: sends what falls due to its target topic."""
