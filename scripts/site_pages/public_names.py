"""The reference of `import fedwright`, one entry for each public name."""

import fedwright

HEAD = """# Python

`import fedwright as fw` offers these names and no others ([how to use them](../python.md)).

**What stays.** The version is `MAJOR.MINOR.PATCH`. Before 1.0 a minor release may change a public name, and says so
under *Changed* in the [changes](../changelog.md).
From 1.0 on only a major release takes a name, an argument or a setting away, and a release before that warns: a name
that will go still works
and raises `DeprecationWarning` with the name that replaces it. What is imported from anywhere below `fedwright.` is
not public, but for the paths that these pages show.

"""


def public_names_page() -> str:
    """What mkdocstrings fills in, name by name."""
    return HEAD + "\n".join(f"::: {fedwright._PLACES[name]}.{name}\n" for name in fedwright.__all__)
