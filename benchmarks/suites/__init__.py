"""One module a suite, beside the TOML that says what is run."""
