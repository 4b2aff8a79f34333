"""Buffers are used again, but never while somebody looks at them."""

from fedwright.protocol.support.buffers import STEP_BYTES, Buffers


def test_a_buffer_nobody_looks_at_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.take(100)
    first[:4] = b"abcd"
    first.release()

    assert bytes(buffers.take(50)[:4]) == b"abcd"


def test_a_buffer_is_not_touched_while_any_part_of_it_is_in_use() -> None:
    buffers = Buffers()
    whole = buffers.take(100)
    part = whole[10:20]
    whole.release()
    part[:] = b"0123456789"

    for _ in range(3):
        buffers.take(100)[:] = b"x" * 100

    assert bytes(part) == b"0123456789"


def test_views_have_the_size_that_was_asked_for() -> None:
    buffers = Buffers()

    assert [len(buffers.take(size)) for size in (1, STEP_BYTES, STEP_BYTES + 1, 100)] == [
        1,
        STEP_BYTES,
        STEP_BYTES + 1,
        100,
    ]


def test_no_more_is_kept_than_allowed() -> None:
    buffers = Buffers(spare_bytes=4 * STEP_BYTES)
    in_use = [buffers.take(STEP_BYTES) for _ in range(20)]

    assert buffers.kept_bytes == 4 * STEP_BYTES

    in_use.clear()
    buffers.take(3 * STEP_BYTES)
    assert buffers.kept_bytes <= 4 * STEP_BYTES
