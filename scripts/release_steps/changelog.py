"""What is written under Unreleased becomes the section of a version."""

import re

HEAD = "## [Unreleased]"


def released(text: str, version: str, date: str) -> str:
    """The changelog with a section for this version; ValueError where there is one, or nothing to release."""
    if f"## [{version}]" in text:
        raise ValueError(f"the changelog has a section {version} already; raise fedwright.__version__")
    before, mark, rest = text.partition(HEAD + "\n")
    section, following, older = rest.partition("\n## [")
    if not mark or not re.search(r"^- ", section, flags=re.MULTILINE):
        raise ValueError("the changelog has nothing under Unreleased; write what changed there first")
    return f"{before}{HEAD}\n\n## [{version}] - {date}\n{section}{following}{older}"
