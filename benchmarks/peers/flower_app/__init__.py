"""The task of the comparison as a Flower app; it is copied out and runs in Flower's own environment."""
