"""How many examples a property of a slow thing gets."""

from hypothesis import settings

ORDINARY = "fedwright"


def few(examples: int) -> settings:
    """So many in an ordinary run; in a longer one as many as its profile says, like everything else."""
    wanted = settings().max_examples
    return settings(max_examples=examples if wanted <= settings.get_profile(ORDINARY).max_examples else wanted)
