"""What the owner of a device lets any server ask of it: `policy.toml`, which nothing on the wire changes."""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from fedwright.protocol.data_summary import FACTS
from fedwright.protocol.errors import ConfigError, PolicyRefused
from fedwright.protocol.messages import Recipe, Returns, SumTerms, Task

# What runs may ask of the data; which classes there are is always told (protocol/data_summary.py).
TELLS = tuple(FACTS)
RETURNS = ("delta", "weights", "class_means", "logits", "evaluation")
POLICY_NAME = "policy.toml"
SYSTEM_POLICY = Path("/etc/fedwright") / POLICY_NAME
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_DAY_MINUTES = 24 * 60

EXAMPLE = """# What servers may ask of this device. No server can change it; `fedwright device doctor` shows it.
# Put it to ~/.config/fedwright/policy.toml (or /etc/fedwright/policy.toml), or give it with --policy FILE.

# What may be sent back: delta and weights of a model, class_means, logits on public rows, evaluation (how many of the
# held-out samples are right). What a server asks for beyond this is refused.
returns = ["delta", "weights", "class_means", "logits", "evaluation"]

# What may be told of the data where a run asks for it: class_counts (how many samples of each class), word_counts,
# pixel_std (how much pixels vary), descriptor (a mean of random features). Which classes there are, how many samples
# and of which shape is always told. tells = [] keeps all else here.
tells = ["class_counts", "word_counts", "pixel_std", "descriptor"]

# A step learns from at least so many samples; smaller batches are refused, and what is left over at the end of an
# epoch is left out of it. One sample alone in a step is as good as sent.
least_batch = 8

# Class means, and mean errors on held-out samples, of fewer are withheld: the mean of one sample is that sample.
least_per_mean = 5

# A task is done only on so many samples or more (a server may ask for single classes).
least_samples = 20

# Graphs of the classic backend (`device run --backend classic`), through which samples cannot be followed: whether a
# server that is curious may be trusted not to have them carry samples away.
unfollowed_graphs = false

# What the device learnt leaves it only in sums over so many devices or more (update.secure); 0: as servers ask.
least_in_sum = 0

# Counts that this device hides (`device run --hide-counts`) are opened over so many different sets of devices, and
# compared with so many different pools, in all its time: two sums that differ by one device tell its counts.
sums_of_counts = 1

# Training on own data must hide each sample: its gradient clipped, with noise of at least so many times the clip, drawn
# here (kind = "example" in a run's [privacy]). Absent: not asked for.
# least_noise = 1.0

# What the device learnt leaves it only in sums with noise of at least so many times the clip, to which it adds its own
# share (kind = "distributed"). Absent: not asked for.
# least_noise_in_sum = 1.0

# Each task with noise tells a little; so many are done in all the device's time, whoever asks. Absent: no limit.
# private_tasks = 200

# What all tasks with noise together tell of one sample: epsilon (delta 1e-6), counted here in all the device's time by
# its own number of samples and each task's noise, batch and steps. Absent: no limit.
# private_epsilon = 8.0

# What is told of the data is told once, with the noise of local differential privacy: epsilon of one sample in all of
# it together (delta 1e-6; docs/privacy.md). Class means are then sent in sums alone. Absent: told as it is.
# tells_epsilon = 2.0

# Large models may be fetched by HTTPS from an address that the server names, beside the broker; false: only from the
# broker.
fetch_https = true

# Operators of graphs that are run, where they shall be fewer than this release knows; empty: all of those.
operators = []

# When to work, in the board's own time; empty: always. Work that is under way at the end of an hour waits.
hours = ["22:00-06:00"]

# Traffic both ways.
mb_per_day = 500.0

# Training pauses beyond these.
most_temperature_c = 75.0
least_battery_ratio = 0.3
most_load_ratio = 0.5
"""


@dataclass(frozen=True)
class Policy:
    """The owner's word; the defaults are those of a device without a policy file."""

    returns: tuple[str, ...] = RETURNS
    tells: tuple[str, ...] = TELLS
    least_batch: int = 1
    least_per_mean: int = 2
    least_samples: int = 1
    unfollowed_graphs: bool = False
    least_in_sum: int = 0
    sums_of_counts: int = 1
    least_noise: float | None = None
    least_noise_in_sum: float | None = None
    tells_epsilon: float | None = None
    private_tasks: int | None = None
    private_epsilon: float | None = None
    fetch_https: bool = True
    operators: tuple[str, ...] = ()
    hours: tuple[str, ...] = ()
    mb_per_day: float | None = None
    most_temperature_c: float | None = None
    least_battery_ratio: float | None = None
    most_load_ratio: float | None = None

    def __post_init__(self) -> None:
        """Check values."""
        for name, valid in (("returns", RETURNS), ("tells", TELLS)):
            wrong = sorted(set(getattr(self, name)) - set(valid))
            if wrong:
                raise ConfigError(f"{name} names {wrong[0]!r}; valid are {', '.join(valid)}")
        for name in ("least_batch", "least_per_mean", "least_samples", "sums_of_counts", "private_tasks"):
            if (getattr(self, name) or 0) < 1 and getattr(self, name) is not None:
                raise ConfigError(f"{name} is {getattr(self, name)} but must be at least 1")
        if self.least_in_sum < 0 or self.least_in_sum in (1, 2):
            raise ConfigError(f"least_in_sum is {self.least_in_sum} but must be 3 or more, or 0 for no demand")
        self._check_positive(
            "least_noise", "least_noise_in_sum", "tells_epsilon", "private_epsilon", why="leave it out to ask for none"
        )
        for text in self.hours:
            if not _HOURS.fullmatch(text):
                raise ConfigError(f"hours has {text!r}, which is not of the form 22:00-06:00")
        self._check_positive("mb_per_day", why="leave it out for no limit")

    def _check_positive(self, *names: str, why: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value} but must be above 0; {why}")

    def check(self, task: Task, minute: int) -> None:
        """Raise PolicyRefused for a task that must not be begun; minute: of the day, by the board's clock."""
        if not self.may_work(minute):
            raise PolicyRefused("hours", f"works only at {', '.join(self.hours)}")
        for name in _wanted(task.returns):
            if name not in self.returns:
                raise PolicyRefused("returns", f"sends no {name}, only {', '.join(self.returns) or 'nothing'}")
        if set(_wanted(task.returns)) - {"evaluation"}:
            self._check_sum(task.sum)
        fewest = _fewest(task.recipe)
        if _trains(task.recipe) and not task.recipe.public and fewest < self.least_batch:
            raise PolicyRefused(
                "least_batch",
                f"learns from {self.least_batch} samples at a time or more, not from {fewest}",
                least=self.least_batch,
            )

        self._check_privacy(task)

    def _check_sum(self, terms: SumTerms | None) -> None:
        """Of what a device learnt."""
        if (0 if terms is None else terms.least) < self.least_in_sum:
            raise PolicyRefused("least_in_sum", f"tells what it learnt in sums over {self.least_in_sum} or more")
        wanted, noise = self.least_noise_in_sum, None if terms is None else terms.noise_multiplier
        if wanted is not None and (noise is None or noise < wanted):
            text = f"tells what it learnt in sums with noise of {wanted:g} or more, not {noise or 0:g}"
            raise PolicyRefused("least_noise_in_sum", text)

    def _check_privacy(self, task: Task) -> None:
        hiding, private = task.privacy, self.tells_epsilon is not None
        if private and task.returns.class_means and task.sum is None:
            raise PolicyRefused(
                "tells_epsilon", "sends class means in sums alone, as what it tells of its data is private"
            )
        if private and task.recipe.classes is not None:
            raise PolicyRefused("tells_epsilon", "trains no classes alone, because that would tell how many there are")
        if hiding is not None and (task.returns.class_means or task.returns.logits):
            raise PolicyRefused("privacy", "sends no class_means and no logits where samples are to be hidden")
        if self.private_epsilon is not None and task.is_private and task.recipe.classes is not None:
            raise PolicyRefused("private_epsilon", "trains no classes alone, whose samples are fewer than it counts")
        if self.least_noise is None or task.recipe.public or not _trains(task.recipe):
            return
        if hiding is None or hiding.noise_multiplier < self.least_noise:
            found = "none" if hiding is None else f"{hiding.noise_multiplier:g}"
            raise PolicyRefused(
                "least_noise",
                f"trains only with noise of {self.least_noise:g} or more on samples' gradients, not {found}",
            )

    def check_samples(self, recipe: Recipe, samples: int) -> None:
        """Raise PolicyRefused for a task whose samples are too few to hide among; public rows need not hide."""
        if recipe.public or not samples or not _trains(recipe):
            return
        least = max(self.least_samples, self.least_batch)
        if samples < least:
            raise PolicyRefused("least_samples", f"works on {least} samples or more, and the task asks for {samples}")

    def may_work(self, minute: int) -> bool:
        """Whether this minute of the day is among the hours."""
        return not self.hours or any(_within(minute, text) for text in self.hours)

    def lines(self) -> list[str]:
        """What is in force, one line each, for a person."""
        shown = []
        for entry in fields(self):
            value = getattr(self, entry.name)
            text = ", ".join(value) if isinstance(value, tuple) else value
            # Of what may leave the device an empty list is none; of hours and operators it is no limit.
            nothing = "nothing" if entry.name in ("returns", "tells") else "no limit"
            shown.append(f"{entry.name}: {nothing if value in ((), None) else text}")
        return shown


@dataclass(frozen=True)
class PolicyFile:
    """A policy and where it stands; None where there is no file."""

    policy: Policy = field(default_factory=Policy)
    path: Path | None = None


def read_policy(path: Path | None, *, environment: Mapping[str, str] | None = None) -> PolicyFile:
    """The policy in a file; without one named, the user's own, the system's, or none."""
    if path is not None:
        return PolicyFile(_read(path), path)
    for place in _places(os.environ if environment is None else environment):
        if place.exists():
            return PolicyFile(_read(place), place)
    return PolicyFile()


def minute_of_day() -> int:
    """By the board's own clock."""
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min


def _places(environment: Mapping[str, str]) -> list[Path]:
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    return [Path(home) / "fedwright" / POLICY_NAME, SYSTEM_POLICY]


def _read(path: Path) -> Policy:
    from fedwright.protocol.support.settings import from_dict
    from fedwright.protocol.support.toml import BadToml, read_toml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"the policy {path} cannot be read ({err}); mend it or give another with --policy") from err
    try:
        tables = read_toml(text)
    except BadToml as err:
        raise ConfigError(f"the policy {path} is no TOML ({err}); `fedwright device policy` prints an example") from err
    return from_dict(Policy, tables, where=f"the policy {path}:")


def _wanted(returns: Returns) -> list[str]:
    """What a task asks for, by the names of a policy."""
    asked = {
        returns.weights: returns.weights != "none",
        "class_means": returns.class_means,
        "logits": returns.logits > 0,
        "evaluation": returns.evaluate,
    }
    return [name for name, wanted in asked.items() if wanted]


def _fewest(recipe: Recipe) -> int:
    """How many samples a gradient is of at least: parts of a batch are as even as can be."""
    return recipe.batch if recipe.part is None else min(recipe.batch, (recipe.part + 1) // 2)


def _trains(recipe: Recipe) -> bool:
    return recipe.steps != 0 if recipe.steps is not None else recipe.epochs > 0


def _within(minute: int, text: str) -> bool:
    start, end = (int(hour) * 60 + int(rest) for hour, rest in (part.split(":") for part in text.split("-")))
    if start < end:
        return start <= minute < end
    return minute >= start or minute < end % _DAY_MINUTES
