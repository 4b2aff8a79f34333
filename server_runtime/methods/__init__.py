"""Methods: one base class, found by name in the registry; a small one is one file, a large one a folder."""
