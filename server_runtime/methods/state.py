"""What a method must not forget, in one form: tensors by name, and small typed records beside them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from numpy.typing import NDArray

from fedwright.protocol import tensors as blobs
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.protocol.tensor_header import metadata

Array = NDArray[Any]
Tensors = dict[str, Array]
T = TypeVar("T")


@dataclass(frozen=True)
class MethodState:
    """Parts of a state are put together with `|`; equal states have equal bytes.

    tensors: anything large, by names that differ between the parts. records: JSON text by name, made by `of`.
    """

    tensors: Tensors = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Tensors | None = None, **records: object) -> "MethodState":
        """A state of tensors and of records: numbers, texts, dataclasses, and lists and dictionaries of them."""
        written = {name: msgspec.json.encode(record, order="sorted").decode() for name, record in records.items()}
        return cls({} if tensors is None else tensors, written)

    def __or__(self, other: "MethodState") -> "MethodState":
        return MethodState(self.tensors | other.tensors, self.records | other.records)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.records)

    def record(self, name: str, kind: type[T]) -> T:
        """A record as `of` was given it; BadBlob when it is not there or is something else."""
        if name not in self.records:
            raise BadBlob(f"the state holds no {name}: another version wrote it; finish that run with its own version")
        try:
            return msgspec.json.decode(self.records[name], type=kind)
        except UNREADABLE as err:
            raise BadBlob(f"the state's {name} cannot be read: {err}; finish that run with its own version") from err

    def below(self, prefix: str) -> Tensors:
        """The tensors whose names begin with a prefix, under the rest of their names."""
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}

    def to_bytes(self) -> bytes:
        """As one blob."""
        return blobs.save(self.tensors, self.records)

    @classmethod
    def read(cls, source: bytes | Path) -> "MethodState":
        """The state in a blob or a file; BadBlob when it is none."""
        return cls(blobs.load(source), metadata(source))
