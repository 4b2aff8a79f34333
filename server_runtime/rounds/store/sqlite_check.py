"""Looks through the store of a run for what cannot be: damaged pages, and rows that contradict each other."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from fedwright.server_runtime.rounds.store.database import Row

# More of one kind say nothing new.
MOST = 5

# Each finds names of tasks, or numbers of rounds, that should not be there.
CONTRADICTIONS = {
    "a reply to task {} that nobody planned": (
        "SELECT task_id FROM reply LEFT JOIN plan USING (task_id) WHERE plan.round IS NULL"
    ),
    "task {} counted as used without a reply": (
        "SELECT task_id FROM absorbed LEFT JOIN reply USING (task_id) WHERE outcome IS NULL"
    ),
    "an update to task {} without what it said": (
        "SELECT task_id FROM reply WHERE outcome = 'update' AND message IS NULL"
    ),
    "task {} in a stage that was never planned": (
        "SELECT task_id FROM plan LEFT JOIN stage USING (round, stage) WHERE stage.round IS NULL"
    ),
    "round {} closed although the one before it is not": (
        "SELECT round FROM closed WHERE round > 1 AND round - 1 NOT IN (SELECT round FROM closed)"
    ),
}


def store_problems(path: Path) -> list[str]:
    """What is wrong with the file, one phrase each; it is only read."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        pages = [row[0] for row in db.execute(f"PRAGMA integrity_check({MOST})")]
        if pages != ["ok"]:
            return [f"damaged pages: {page}" for page in pages]
        return contradictions(lambda query: db.execute(query).fetchall())


def contradictions(rows: Callable[[str], Sequence[Row]]) -> list[str]:
    """Rows of a store that contradict each other, one phrase each; rows: what a query finds there."""
    return [phrase.format(row[0]) for phrase, query in CONTRADICTIONS.items() for row in rows(f"{query} LIMIT {MOST}")]
