"""The server's part in sums of changes: it learns the sum, and who is in it."""
