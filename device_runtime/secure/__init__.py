"""A device's part in sums that hide its change."""
