"""Models that can be built at any size."""
