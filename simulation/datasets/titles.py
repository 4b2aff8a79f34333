"""Medium titles: predict the next word of a title; seven publications are the devices (HASA's benchmark).

Cleaning, as far as the paper's own counts tell: titles of at least 3 words; lower case; all but a-z becomes a space;
5 % of articles apart as out-of-distribution, 5 % of the rest as a shared test set; the vocabulary is every word seen
at least twice outside the first 5 %; other words become <unk> and stay; each publication's articles are cut 70/10/20;
every prefix of a title is one example, and the word behind it is its label.
"""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.describe.word_counts import PADDING, UNKNOWN
from fedwright.protocol.errors import DataError
from fedwright.simulation.datasets.base import DataSet
from fedwright.simulation.datasets.files import Progress, Source, fetch

TITLES = Source("medium_titles.csv", origin="the Medium Articles Dataset of D. Lazar (2019, 7 publications)")
# Steps of the paper's cost model; shorter prefixes have <pad> in front, so that the last word is always last.
WORDS = 23
_LEAST_WORDS = 3
_LEAST_SEEN = 2
_APART = 0.05
_VAL, _TEST = 0.1, 0.2

Index = NDArray[np.int64]


@dataclass(frozen=True)
class _Prefixes:
    """Examples: word ids [n, WORDS], next word, publication and article of each."""

    x: Index
    y: Index
    owner: Index
    article: Index


def load_titles(progress: Progress | None, *, seed: int = 0) -> DataSet:
    """Training and test prefixes; extra has those of val, ood and shared, and the article of each training prefix."""
    path = fetch(TITLES, progress)
    titles, publications = _read(path)
    owners = tuple(sorted(set(publications)))
    owner = np.array([owners.index(publication) for publication in publications], np.int64)
    words = [re.sub("[^a-z]", " ", title.lower()).split() for title in titles]
    parts = _parts(owner, np.random.default_rng(seed))
    pool = np.concatenate([rows for name, rows in parts.items() if name != "ood"])
    vocabulary = _vocabulary([words[row] for row in pool.tolist()])
    made = {name: _prefixes(rows, words, owner, vocabulary) for name, rows in parts.items()}
    extra = {
        f"{kind}_{name}": getattr(made[name], kind) for name in ("val", "ood", "shared") for kind in ("x", "y", "owner")
    }
    return DataSet(
        name="medium-titles",
        kind="tokens",
        x_train=made["train"].x,
        y_train=made["train"].y,
        x_test=made["test"].x,
        y_test=made["test"].y,
        classes=("<pad>", "<unk>", *vocabulary),
        owners=owners,
        owner_train=made["train"].owner,
        owner_test=made["test"].owner,
        extra=extra | {"article_train": made["train"].article},
    )


def _read(path: Path) -> tuple[list[str], list[str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(row["title"], row["publication"]) for row in csv.DictReader(file)]
    except (KeyError, UnicodeDecodeError, csv.Error) as err:
        raise DataError(f"{path} must be a UTF-8 table with columns title and publication: {err}") from err
    kept = [row for row in rows if row[0] and row[1] and len(row[0].split()) >= _LEAST_WORDS]
    if not kept:
        raise DataError(f"{path} has no title of {_LEAST_WORDS} words or more; get it again")
    return [title for title, _ in kept], [publication for _, publication in kept]


def _parts(owner: Index, rng: np.random.Generator) -> dict[str, Index]:
    """Articles of each part; val and test are drawn inside each publication, with at least one for training."""
    order = rng.permutation(len(owner))
    ood = int(_APART * len(order))
    shared = ood + int(_APART * (len(order) - ood))
    rest = order[shared:]
    parts: dict[str, list[Index]] = {"train": [], "val": [], "test": []}
    for publication in np.unique(owner).tolist():
        rows = rest[owner[rest] == publication]
        tests, vals = int(_TEST * len(rows)), int(_VAL * len(rows))
        parts["test"].append(rows[:tests])
        parts["val"].append(rows[tests : tests + vals])
        parts["train"].append(rows[tests + vals :])
    return {"ood": order[:ood], "shared": order[ood:shared]} | {
        name: np.concatenate(rows) for name, rows in parts.items()
    }


def _vocabulary(pool: Sequence[Sequence[str]]) -> dict[str, int]:
    """Words seen at least twice, in the order of the alphabet, numbered behind <pad> and <unk>."""
    seen = Counter(word for words in pool for word in words)
    return {word: 2 + i for i, word in enumerate(sorted(w for w, count in seen.items() if count >= _LEAST_SEEN))}


def _prefixes(rows: Index, words: Sequence[Sequence[str]], owner: Index, vocabulary: dict[str, int]) -> _Prefixes:
    ids = {row: [vocabulary.get(word, UNKNOWN) for word in words[row]][: WORDS + 1] for row in rows.tolist()}
    counts = [max(0, len(title) - 1) for title in ids.values()]
    x = np.full((sum(counts), WORDS), PADDING, np.int64)
    y = np.empty(sum(counts), np.int64)
    at = 0
    for title in ids.values():
        for length in range(1, len(title)):
            x[at, WORDS - length :] = title[:length]
            y[at] = title[length]
            at += 1
    return _Prefixes(x, y, np.repeat(owner[rows], counts), np.repeat(rows, counts))
