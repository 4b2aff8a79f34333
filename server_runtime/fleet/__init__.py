"""Who is in the fleet: registry, admission, speeds, certificates."""
