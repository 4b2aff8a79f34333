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
    """Unknown groups, merged when their axes meet and fixed when an axis meets something that cannot be cut.

    A group may turn out to be made of another one: where attention reads a trunk of 64 channels with heads of 16,
    these are 4 channels of a group of heads, 16 entries each.
    """

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._names: list[str] = []
        self._fixed: set[int] = set()
        self._made_of: dict[int, AxisPart] = {}

    def new(self, name: str, length: int, *, outer: int = 1) -> Tag:
        """An axis of a group nobody has met yet; the earliest name of merged groups stays."""
        self._parent.append(len(self._parent))
        self._names.append(name)
        return (AxisPart(self._parent[-1], length, outer),)

    def unify(self, one: Tag, other: Tag) -> Tag:
        """These two axes hold the same channels; axes that no common group can describe are not cut at all."""
        if [part.length for part in one] != [part.length for part in other]:
            self.fix([one, other])
            return FIXED
        for a, b in zip(one, other, strict=True):
            self._meet(self._plain(a), self._plain(b))
        return one

    def split(self, tag: Tag, name: str, *, outer: int = 1, inner: int = 1) -> Tag:
        """The channels of an axis that is outer × channels × inner long, as an axis of their own."""
        if not tag:
            return FIXED
        length = sum(part.length for part in tag)
        channels = self.new(name, length // (outer * inner))
        self.unify(tag, tuple(replace(part, length=length, outer=outer, inner=inner) for part in channels))
        return channels

    def _meet(self, a: AxisPart, b: AxisPart) -> None:
        """Make two stretches of equal length one, or keep both whole."""
        if a == b:
            return
        if a.unknown is None or b.unknown is None or a.unknown == b.unknown:
            self.fix([(a,), (b,)])
        elif (a.outer, a.inner) == (b.outer, b.inner):
            self._merge(a.unknown, b.unknown)
        elif b.outer % a.outer == 0 and b.inner % a.inner == 0:
            self._made_of[a.unknown] = replace(b, outer=b.outer // a.outer, inner=b.inner // a.inner)
        elif a.outer % b.outer == 0 and a.inner % b.inner == 0:
            self._made_of[b.unknown] = replace(a, outer=a.outer // b.outer, inner=a.inner // b.inner)
        else:
            self.fix([(a,), (b,)])

    def _plain(self, part: AxisPart) -> AxisPart:
        """The stretch in terms of a group that is not made of another."""
        while part.unknown is not None and (root := self._root(part.unknown)) in self._made_of:
            made = self._made_of[root]
            part = AxisPart(made.unknown, part.length, part.outer * made.outer, part.inner * made.inner)
        return part if part.unknown is None else replace(part, unknown=self._root(part.unknown))

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
        plain = self._plain(part)
        if plain.unknown is None or plain.unknown in {self._plain(AxisPart(fixed, 0)).unknown for fixed in self._fixed}:
            return None
        return Axis(self._names[plain.unknown], plain.outer, plain.inner)

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
