"""Where work is done: each engine is an executor of the standard library, so that who uses it need not know which."""
