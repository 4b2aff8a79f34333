"""Trainers: one interface, the portable backend by default."""
