"""Intake: inbox topics into the store."""
