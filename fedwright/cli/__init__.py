"""The command line: a thin layer that imports a side only when asked for it."""
