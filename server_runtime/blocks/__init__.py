"""Pure maths; knows nothing of rounds, devices or methods."""
