"""Tables of results as Markdown and HTML, and how their differences compare with those of a paper."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
PAPER = "paper "


def is_table(value: Any) -> bool:
    """Whether part of a result is a list of records."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def columns_of(rows: Sequence[Row]) -> list[str]:
    """All columns in the order in which they first come."""
    return list(dict.fromkeys(column for row in rows for column in row))


def text_of(value: Any) -> str:
    """A cell: numbers short but not wrong, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    return str(value)


def markdown(rows: Sequence[Row]) -> str:
    """A pipe table."""
    columns = columns_of(rows)
    lines = [columns, ["---", *("---:" for _ in columns[1:])]]
    lines += [[text_of(row.get(column)).replace("|", "\\|") for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def html_table(rows: Sequence[Row]) -> str:
    """The same for a page; text from a result is never markup."""
    columns = columns_of(rows)
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text_of(row.get(column)))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def signs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row against each other one, wherever a column has its twin `paper …`: does the sign agree?

    The one is the first that has both numbers.
    """
    if len(rows) < 2:
        return []
    columns, found = columns_of(rows), []
    name = columns[0]
    for column in columns:
        pairs = [(row[name], row.get(column), row.get(PAPER + column)) for row in rows]
        known = [(label, a, b) for label, a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)]
        for label, here, paper in known[1:]:
            base = known[0]
            ours, theirs = base[1] - here, base[2] - paper
            agree = (ours > 0) == (theirs > 0) and (ours < 0) == (theirs < 0)
            found.append(
                {
                    "difference": f"{base[0]} - {label}, {column}",
                    "here": float(ours),
                    "paper": float(theirs),
                    "same sign": agree,
                }
            )
    return found
