"""The child processes that suites start."""
