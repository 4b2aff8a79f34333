"""How fast this device trains: small graphs timed with the real backend, and what follows from their times."""
