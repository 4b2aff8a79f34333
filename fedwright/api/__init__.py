"""Fedwright for programs: what `import fedwright` offers; the command line calls the same functions."""
