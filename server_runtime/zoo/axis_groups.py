"""Which axes must be cut together: union-find over the channel axes that meet while a module runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from fedwright.server_runtime.blocks.slicing import Axis, AxisLike, Joined


@dataclass(frozen=True)
class AxisPart:
    """A stretch of an axis: outer × channels × inner entries of one unknown group; None for a stretch that is fixed."""

    unknown: int | None
    length: int
    outer: int = 1
    inner: int = 1


# One axis: its stretches, end to end; an empty tuple is an axis that is never cut.
Tag = tuple[AxisPart, ...]
Tags = tuple[Tag, ...]
FIXED: Tag = ()


class AxisGroups:
    """Unknown groups, merged when their axes meet and fixed when an axis meets something that cannot be cut."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._names: list[str] = []
        self._fixed: set[int] = set()

    def new(self, name: str, length: int, *, outer: int = 1) -> Tag:
        """An axis of a group nobody has met yet; the earliest name of merged groups stays."""
        self._parent.append(len(self._parent))
        self._names.append(name)
        return (AxisPart(self._parent[-1], length, outer),)

    def unify(self, one: Tag, other: Tag) -> Tag:
        """These two axes hold the same channels; axes of different form are not cut at all."""
        if [_form(part) for part in one] != [_form(part) for part in other]:
            self.fix([one, other])
            return FIXED
        for a, b in zip(one, other, strict=True):
            if a.unknown is not None and b.unknown is not None:
                self._merge(a.unknown, b.unknown)
            else:
                self.fix([(a,), (b,)])
        return one

    def fix(self, tags: Iterable[Tag]) -> None:
        """None of these axes may be cut."""
        self._fixed.update(part.unknown for tag in tags for part in tag if part.unknown is not None)

    def axis(self, tag: Tag) -> AxisLike:
        """What became of an axis in the end."""
        parts = [(self._part_axis(part), part.length) for part in tag]
        if all(found is None for found, _ in parts):
            return None
        return parts[0][0] if len(parts) == 1 else Joined(tuple(parts))

    def _part_axis(self, part: AxisPart) -> Axis | None:
        if part.unknown is None:
            return None
        root = self._root(part.unknown)
        if root in {self._root(number) for number in self._fixed}:
            return None
        return Axis(self._names[root], part.outer, part.inner)

    def _root(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def _merge(self, one: int, other: int) -> None:
        first, second = sorted((self._root(one), self._root(other)))
        self._parent[second] = first


def flattened(groups: AxisGroups, tags: Sequence[Tag], shape: Sequence[int]) -> Tag:
    """The axis made of these axes, row by row: at most one of them may have channels."""
    cut = [position for position, tag in enumerate(tags) if tag]
    if not cut:
        return FIXED
    before, behind = prod(shape[: cut[0]]), prod(shape[cut[0] + 1 :])
    tag = tags[cut[0]]
    if len(cut) > 1 or (len(tag) > 1 and before > 1):
        groups.fix(tags)
        return FIXED
    return tuple(
        replace(part, outer=part.outer * before, inner=part.inner * behind, length=part.length * before * behind)
        for part in tag
    )


def joined(tags: Sequence[Tag], lengths: Sequence[int]) -> Tag:
    """The axis made of these axes end to end."""
    return tuple(part for tag, length in zip(tags, lengths, strict=True) for part in (tag or (AxisPart(None, length),)))


def _form(part: AxisPart) -> tuple[bool, int, int, int]:
    return part.unknown is None, part.length, part.outer, part.inner
