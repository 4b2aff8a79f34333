"""Links carry bytes on topics; `connect` opens the one that a URL names."""
