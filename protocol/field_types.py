"""The types that fields of messages have, with their limits."""

from typing import Annotated, Literal

from msgspec import Meta

# \Z and not $, which lets a line break follow; ids become names of files.
Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^(?!\.{1,2}\Z)[A-Za-z0-9_.\-]+\Z")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
MOST_COUNT = 2**53
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Seconds = Annotated[float, Meta(ge=0)]
# What a device measured, by name.
Figures = Annotated[dict[Annotated[str, Meta(max_length=40)], float], Meta(max_length=20)]
Text = Annotated[str, Meta(max_length=2000)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
# What a device, a config or a run calls its classes, in the order of their numbers.
ClassNames = Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=10_000)]
# The ways in which a change may be rounded on the wire.
Codec = Literal["float32", "bf16", "int8", "int4"]
# Those that came after the first release, and what is asked of agents that do not know them.
INSTEAD: dict[str, Codec] = {"int4": "int8"}
