"""Documents that lie outside docs/, as pages of the site."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Page, and the document that it shows.
DOCUMENTS = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "profiles.md": "profiles/README.md",
    "benchmarks.md": "benchmarks/README.md",
}


def document_pages() -> dict[str, str]:
    """The documents by the name of their page; links that lead to files of the repository become plain text."""
    return {page: _unlinked((ROOT / source).read_text()) for page, source in DOCUMENTS.items()}


def _unlinked(text: str) -> str:
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?![a-z]+://|#)[^)\s]+\)", r"\1", text)
