"""The ways in which a change may be rounded on the wire, and what agents do that do not know one."""

from typing import Literal

Codec = Literal["float32", "bf16", "int8", "int4"]
# Codecs that came after the first release, and what is asked of agents that do not know them.
INSTEAD: dict[str, Codec] = {"int4": "int8"}
