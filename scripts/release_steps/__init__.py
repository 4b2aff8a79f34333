"""The steps of a release, each a function that a test calls too."""
