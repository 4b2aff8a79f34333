"""What msgspec raises for bytes that are not what they should be."""

import msgspec

# Bytes that are no UTF-8 and nests that are too deep have errors of their own.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
