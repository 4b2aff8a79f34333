"""Blobs: references, the store, and transfers without a link."""

import hashlib
import os
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from fedwright.protocol.blobs import BlobStore, Download, blob_name, check_ref, make_ref
from fedwright.protocol.errors import BadBlob, DeviceError
from fedwright.protocol.messages import CHUNK_BYTES, LARGE_BLOB_BYTES, LARGE_CHUNK_BYTES, BlobRef, Chunk, Get, Lost
from fedwright.protocol.uploads import Uploads

CHUNK = 1024
DATA = b"".join(bytes([number]) * CHUNK for number in range(10)) + b"tail"  # ten full chunks and four bytes


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def ref() -> BlobRef:
    return make_ref(DATA, chunk_bytes=CHUNK)


def part(index: int) -> bytes:
    return DATA[index * CHUNK : (index + 1) * CHUNK]


def test_a_reference_says_hashes_and_sizes(ref: BlobRef) -> None:
    assert ref.sha256 == blob_name([hashlib.sha256(DATA).digest()], 10_244)
    assert ref.size_bytes == 10_244
    assert ref.chunks == [hashlib.sha256(part(index)).digest() for index in range(11)]
    assert ref.inline is None


def test_a_file_and_its_bytes_have_one_reference(tmp_path: Path, ref: BlobRef) -> None:
    file = tmp_path / "data"
    file.write_bytes(DATA)

    assert make_ref(file, chunk_bytes=CHUNK) == ref


@pytest.mark.parametrize("data", [b"", b"x", bytes(CHUNK)], ids=["empty", "one byte", "one chunk"])
def test_what_fits_one_chunk_travels_inline(store: BlobStore, data: bytes) -> None:
    small = make_ref(data, chunk_bytes=CHUNK)
    download = Download(store, small)

    assert small.inline == data
    assert download.done
    assert download.finish().read_bytes() == data


@pytest.mark.parametrize("data", [b"", b"x"], ids=["empty", "one byte"])
def test_inline_can_be_declined(store: BlobStore, data: bytes) -> None:
    small = make_ref(data, chunk_bytes=CHUNK, inline=False)
    download = Download(store, small)

    for index in download.wanted(0.0):
        download.accept(index, data)

    assert small.inline is None
    assert download.finish().read_bytes() == data


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size_bytes": 10_240}, "must have 10 chunks, not 11"),
        ({"size_bytes": 2**40}, "over the limit"),
        ({"chunk_bytes": 2048}, "must have 6 chunks"),
        ({"chunks": []}, "not 0"),
        ({"inline": b"other"}, "inline bytes"),
        ({"inline": DATA[:-1] + b"x"}, "inline bytes"),
    ],
    ids=["size", "limit", "chunk size", "no chunks", "inline size", "inline hash"],
)
def test_references_that_contradict_themselves_are_refused(
    store: BlobStore, ref: BlobRef, change: dict[str, object], says: str
) -> None:
    bad = msgspec.structs.replace(ref, **change)

    with pytest.raises(BadBlob, match=says):
        Download(store, bad)
    assert list(store.folder.iterdir()) == []


def test_too_many_chunks_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as handle:
        handle.truncate(65_537 * CHUNK)

    with pytest.raises(BadBlob, match="larger chunks"):
        make_ref(file, chunk_bytes=CHUNK)


def test_the_limit_of_a_receiver_holds(ref: BlobRef) -> None:
    check_ref(ref, max_bytes=10_244)

    with pytest.raises(BadBlob, match="limit of 10243"):
        check_ref(ref, max_bytes=10_243)


def test_store_keeps_and_gives(store: BlobStore, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(DATA)

    sha256 = store.put_file(file)

    assert sha256 == store.put_bytes(DATA)
    assert store.has(sha256)
    assert store.read(sha256) == DATA
    assert store.view(sha256) == DATA
    assert bytes(store.view(store.put_bytes(b""))) == b""
    assert {entry.name for entry in store.folder.iterdir()} == {sha256, store.put_bytes(b"")}


def test_store_says_what_it_lacks(store: BlobStore) -> None:
    assert not store.has("0" * 64)
    with pytest.raises(BadBlob, match="000000000000 is not in"):
        store.read("0" * 64)


def test_store_forgets_the_least_recently_used(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limit_bytes=300)
    shas = [store.put_bytes(bytes([number]) * 100) for number in range(3)]
    for number, sha256 in enumerate(shas):
        os.utime(tmp_path / sha256, (number, number))
    store.pin(shas[0])
    store.path(shas[1])

    store.put_bytes(b"new!" * 25)

    assert [store.has(sha256) for sha256 in shas] == [True, True, False]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)

    with pytest.raises(DeviceError, match=r"No space left on device\); free some space"):
        store.put_bytes(DATA)
    assert list(store.folder.iterdir()) == []


def test_a_download_asks_within_its_window(store: BlobStore, ref: BlobRef) -> None:
    download = Download(store, ref, window_bytes=3 * CHUNK)

    assert download.wanted(0.0) == [0, 1, 2]
    assert download.wanted(0.1) == []
    download.accept(1, part(1))
    assert download.wanted(0.2) == [3]


def test_the_window_grows_on_a_fast_link_and_shrinks_on_a_slow_one(store: BlobStore) -> None:
    data = os.urandom(200 * CHUNK)
    fast = make_ref(data, chunk_bytes=CHUNK)
    download = Download(store, fast)
    now_s = 0.0
    asked = []
    for pace_s in [0.1] * 3 + [5.0] * 3:
        wanted = download.wanted(now_s)
        asked.append(len(wanted))
        for index in wanted:
            download.accept(index, data[index * CHUNK : (index + 1) * CHUNK])
        now_s += pace_s

    assert asked == [4, 8, 16, 32, 16, 8]


def test_what_does_not_come_is_asked_for_again(store: BlobStore, ref: BlobRef) -> None:
    download = Download(store, ref, window_bytes=2 * CHUNK, retry_s=2.0)
    download.wanted(0.0)
    download.accept(1, part(1))

    assert download.wanted(1.0) == [2]
    assert download.wanted(2.9) == []
    assert download.wanted(3.0) == [0, 2]


def test_a_lost_link_asks_again_at_once(store: BlobStore, ref: BlobRef) -> None:
    download = Download(store, ref, window_bytes=2 * CHUNK)
    download.wanted(0.0)

    download.lost_link()

    assert download.wanted(0.1) == [0, 1]


def test_a_late_chunk_teaches_patience(store: BlobStore, ref: BlobRef) -> None:
    download = Download(store, ref, window_bytes=CHUNK, retry_s=2.0)
    download.wanted(0.0)
    assert download.wanted(2.0) == [0]
    download.accept(0, part(0))
    download.accept(0, part(0))
    assert download.wanted(3.0) == [1]

    assert download.wanted(6.0) == []
    assert download.wanted(7.0) == [1]
    assert download.duplicates == 1


def test_a_chunk_that_comes_twice_without_being_asked_for_again_teaches_nothing(store: BlobStore, ref: BlobRef) -> None:
    download = Download(store, ref, window_bytes=CHUNK, retry_s=2.0)
    download.wanted(0.0)
    # The wire repeats it, and the server sends it to all because another device wants it.
    for _ in range(8):
        download.accept(0, part(0))
    assert download.wanted(1.0) == [1]

    assert download.wanted(2.9) == []
    assert download.wanted(3.0) == [1]


@pytest.mark.parametrize(
    "data", [b"", b"x" * CHUNK, part(1), part(0) + b"x"], ids=["empty", "flipped", "other", "long"]
)
def test_a_corrupted_chunk_is_asked_for_again(store: BlobStore, ref: BlobRef, data: bytes) -> None:
    download = Download(store, ref, window_bytes=CHUNK)
    assert download.wanted(0.0) == [0]

    assert not download.accept(0, data)

    assert download.wanted(0.0) == [0]
    assert download.accept(0, part(0))


@pytest.mark.parametrize("index", [-1, 11, 65_535])
def test_chunks_that_do_not_exist_are_ignored(store: BlobStore, ref: BlobRef, index: int) -> None:
    download = Download(store, ref)

    assert not download.accept(index, b"x")
    assert download.missing == 11


def test_chunks_nobody_asked_for_count(store: BlobStore, ref: BlobRef) -> None:
    download = Download(store, ref)

    for index in reversed(range(11)):
        assert download.accept(index, part(index))

    assert download.done
    assert download.finish().read_bytes() == DATA
    assert [entry.name for entry in store.folder.iterdir()] == [ref.sha256]


def test_a_new_process_asks_only_for_what_is_missing(store: BlobStore, ref: BlobRef) -> None:
    before = Download(store, ref)
    for index in (0, 3, 10):
        before.accept(index, part(index))

    after = Download(BlobStore(store.folder), ref, window_bytes=100 * CHUNK)

    assert after.missing == 8
    for index in (1, 2, 4, 5, 6, 7, 8, 9):
        after.accept(index, part(index))
    assert after.finish().read_bytes() == DATA
    assert Download(store, ref).done


def test_marks_ahead_of_the_data_are_not_believed(store: BlobStore, ref: BlobRef) -> None:
    before = Download(store, ref)
    for index in range(11):
        before.accept(index, part(index))
    with (store.folder / f"{ref.sha256}.part").open("r+b") as file:
        file.seek(4 * CHUNK)
        file.write(bytes(CHUNK))
        file.truncate(9 * CHUNK)

    after = Download(store, ref, window_bytes=100 * CHUNK)

    assert after.wanted(0.0) == [4, 9, 10]


@pytest.mark.parametrize("still_to_come", [0, 4], ids=["at the end", "on the way"])
def test_a_blob_that_was_removed_while_it_came_is_not_taken_for_whole(
    store: BlobStore, ref: BlobRef, still_to_come: int
) -> None:
    download = Download(store, ref)
    for index in range(11 - still_to_come):
        download.accept(index, part(index))
    store.remove(ref.sha256)
    for index in range(11 - still_to_come, 11):
        download.accept(index, part(index))

    with pytest.raises(BadBlob, match="was removed from"):
        download.finish()
    assert not store.has(ref.sha256)
    assert Download(store, ref).missing == 11


def test_finish_needs_every_chunk(store: BlobStore, ref: BlobRef) -> None:
    with pytest.raises(BadBlob, match="lacks 11 chunks"):
        Download(store, ref).finish()


def test_a_name_does_not_depend_on_the_size_of_chunks(store: BlobStore) -> None:
    data = os.urandom(700_000)
    names = {make_ref(data, chunk_bytes=size).sha256 for size in (1024, 256 * 1024, 1024 * 1024)}

    assert names == {store.put_bytes(data)}


def test_a_large_blob_has_fewer_and_larger_chunks_under_the_same_name(store: BlobStore, tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as handle:
        handle.truncate(LARGE_BLOB_BYTES + 1)
    large = make_ref(file)

    assert (large.chunk_bytes, len(large.chunks)) == (LARGE_CHUNK_BYTES, 17)
    assert make_ref(file, chunk_bytes=CHUNK_BYTES).sha256 == large.sha256
    download = Download(store, large)
    assert download.wanted(0.0) == [0]
    assert download.wanted(7.9) == []
    assert download.wanted(8.0) == [0]


def test_a_name_tells_contents_apart_that_look_like_lists_of_hashes() -> None:
    data = os.urandom(600_000)
    ref = make_ref(data)
    imitation = b"fedwright blob 1\0" + (600_000).to_bytes(8, "little") + b"".join(ref.chunks)

    assert make_ref(imitation).sha256 != ref.sha256


def test_chunks_that_do_not_add_up_to_the_blob_are_refused_at_once(store: BlobStore) -> None:
    ref = make_ref(bytes(600_000))
    lying = msgspec.structs.replace(ref, chunks=[ref.chunks[0], ref.chunks[2], ref.chunks[1]])

    with pytest.raises(BadBlob, match="do not add up"):
        Download(store, lying)


def test_chunks_of_another_size_that_do_not_add_up_are_refused_in_the_end(store: BlobStore, ref: BlobRef) -> None:
    lying = msgspec.structs.replace(ref, sha256="0" * 64)
    download = Download(store, lying)
    for index in range(11):
        download.accept(index, part(index))

    with pytest.raises(BadBlob, match="do not add up"):
        download.finish()
    assert list(store.folder.iterdir()) == []


def test_an_upload_answers_a_bounded_number_of_chunks(store: BlobStore) -> None:
    uploads = Uploads(store)
    ref = uploads.offer(DATA, chunk_bytes=CHUNK)

    answers = list(uploads.answer(Get(ref.sha256, [2, 10, 11, 5]), limit=3))

    assert answers == [Chunk(ref.sha256, 2, memoryview(part(2))), Chunk(ref.sha256, 10, memoryview(b"tail"))]


def test_an_upload_says_when_a_blob_is_gone(store: BlobStore) -> None:
    uploads = Uploads(store)
    ref = uploads.offer(DATA, chunk_bytes=CHUNK)
    secret = store.put_bytes(b"never offered")

    uploads.withdraw(ref.sha256)

    assert list(uploads.answer(Get(ref.sha256, [0]))) == [Lost(ref.sha256)]
    assert list(uploads.answer(Get(secret, [0]))) == [Lost(secret)]


def test_a_large_blob_never_lies_in_memory(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        for number in range(32):
            file.write(bytes([number]) * 2**20)
    sender, receiver = BlobStore(tmp_path / "sender"), BlobStore(tmp_path / "receiver")

    tracemalloc.start()
    uploads = Uploads(sender)
    download = Download(receiver, uploads.offer(source))
    while not download.done:
        for answer in uploads.answer(Get(download.ref.sha256, download.wanted(0.0))):
            assert isinstance(answer, Chunk)
            download.accept(answer.index, answer.data)
    path = download.finish()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert path.stat().st_size == 2**25
    assert peak_bytes < 2**22
