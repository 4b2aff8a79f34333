"""The list of errors with causes and cures, exit codes, and what the figures of a run mean."""

from fedwright.cli.explanations import EXPLANATIONS
from fedwright.cli.main import EXIT_CODES

ERRORS_HEAD = """# Errors

An error is one sentence: what is wrong, where, and what to do about it. On the command line it ends with a code;
`fedwright explain CODE` shows, without a
network, what stands here. In Python errors are subclasses of `fedwright.FedwrightError`.
"""
CODES_HEAD = """# Exit codes

| code | meaning |
| ---: | --- |
"""


def errors_page() -> str:
    """One section for each kind of error."""
    parts = [ERRORS_HEAD]
    for name, known in EXPLANATIONS.items():
        causes = "\n".join(f"- {cause}" for cause in known.causes)
        cures = "\n".join(f"- {cure}" for cure in known.cures)
        parts.append(f"## {known.code}\n\n`{name}`: {known.meaning}.\n\nCauses:\n\n{causes}\n\nCures:\n\n{cures}\n")
    return "\n".join(parts)


def exit_codes_page() -> str:
    """What a command's exit code says."""
    return CODES_HEAD + "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()) + "\n"
