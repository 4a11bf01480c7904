"""Frames: what was encoded is decoded, and anything else is refused."""

from __future__ import annotations

import io
import os
import random

import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kcachefs.errors import ObjectDamaged
from kcachefs.store.frames import (
    FRAME_SIZE,
    TRAILER,
    Codec,
    check_tail,
    decode_tail,
    decode_trailer,
    encode_tail,
    frame_check,
    frames_of,
    last_frame,
    split,
    stored_max,
    tail_length,
)


@given(st.binary(max_size=5000), st.integers(1, 30), st.integers(-5, 19))
def test_a_frame_comes_back(data: bytes, times: int, level: int) -> None:
    codec = Codec(level)
    assert codec.decode_frame(codec.encode_frame(data * times), len(data) * times)[0] == data * times


@pytest.mark.parametrize("size", [0, 1, FRAME_SIZE - 1, FRAME_SIZE, FRAME_SIZE + 1, 3 * FRAME_SIZE, 3 * FRAME_SIZE + 7])
def test_the_last_frame_begins_where_the_others_end(size: int) -> None:
    assert last_frame(size) == sum(map(len, split(bytes(size))[:-1]))


@pytest.mark.parametrize("size", [4096, 10_000, FRAME_SIZE])
def test_what_does_not_shrink_has_a_checksum_all_the_same(size: int) -> None:
    data = os.urandom(size)
    stored = Codec().encode_frame(data)
    assert len(data) < len(stored) <= stored_max(size)
    assert Codec().decode_frame(stored, size) == (data, True)
    assert len(Codec().encode_frame(bytes(10_000))) < 100


def test_a_few_bytes_are_stored_raw() -> None:
    for size in range(300):
        data = os.urandom(size)
        assert Codec().encode_frame(data) == data
        assert Codec().decode_frame(data, size) == (data, False)


def test_a_frame_that_would_be_as_long_as_its_bytes_is_raw() -> None:
    """Otherwise nobody could tell it from one."""
    chosen, met = random.Random(1), False
    for _ in range(2000):
        data = chosen.randbytes(600) + bytes(chosen.randrange(40))
        packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)
        stored = Codec().encode_frame(data)
        assert len(stored) != len(data) or stored == data
        assert Codec().decode_frame(stored, len(data))[0] == data
        met |= len(packed) == len(data)
    assert met


@pytest.mark.parametrize("data", [b"kernel " * 300, random.Random(2).randbytes(2000)], ids=["text", "noise"])
def test_any_bit_that_changes_in_a_frame_is_noticed(data: bytes) -> None:
    stored = Codec().encode_frame(data)
    for bit in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            plain, is_checked = Codec().decode_frame(bytes(flipped), len(data))
        except ObjectDamaged:
            continue
        assert plain == data or not is_checked


def test_a_frame_from_before_there_were_checksums_is_not_taken_for_checked() -> None:
    stored = zstandard.ZstdCompressor(level=3, write_checksum=False).compress(b"kernel " * 300)
    assert Codec().decode_frame(stored, 2100) == (b"kernel " * 300, False)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_frame_of_the_wrong_length_or_no_frame_at_all_is_damage(stored: bytes, length: int) -> None:
    try:
        plain, _ = Codec().decode_frame(stored, length)
    except ObjectDamaged:
        return
    assert len(plain) == length


@pytest.mark.parametrize("size", [0, 1, FRAME_SIZE - 1, FRAME_SIZE, FRAME_SIZE + 1, 3 * FRAME_SIZE, 3 * FRAME_SIZE + 7])
def test_an_object_is_cut_into_frames_and_found_again(size: int) -> None:
    data = os.urandom(size)
    frames = split(data)
    assert b"".join(frames) == data
    assert b"".join(frames_of(io.BytesIO(data).read)) == data
    digest = blake3(data).digest()
    tail = encode_tail(digest, size, [(len(frame), frame_check(frame, frame)) for frame in frames])
    assert len(tail) == tail_length(len(frames))
    table = decode_tail(tail, digest, size + len(tail))
    assert [data[frame.offset : frame.offset + frame.stored] for frame in table] == list(frames)
    assert [frame.plain for frame in table] == [len(frame) for frame in frames]


def test_frames_are_full_although_the_stream_returns_little_at_a_time() -> None:
    data = os.urandom(2 * FRAME_SIZE + 100)
    stream = io.BytesIO(data)
    frames = list(frames_of(lambda size: stream.read(min(size, 1000))))
    assert [len(frame) for frame in frames] == [FRAME_SIZE, FRAME_SIZE, 100]
    assert b"".join(frames) == data


def test_every_flipped_bit_of_a_tail_is_noticed() -> None:
    digest = blake3(b"x").digest()
    tail = encode_tail(digest, 600_000, [(100, bytes(16)), (100, bytes(16)), (100, bytes(16))])
    length = 300 + len(tail)
    assert len(decode_tail(tail, digest, length)) == 3
    for bit in range(len(tail) * 8):
        flipped = bytearray(tail)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ObjectDamaged):
            decode_tail(bytes(flipped), digest, length)


def test_a_trailer_of_another_object_is_refused() -> None:
    tail = encode_tail(blake3(b"x").digest(), 10, [(10, b"")])
    with pytest.raises(ObjectDamaged, match="another object"):
        decode_tail(tail, blake3(b"y").digest(), 10 + len(tail))


def test_a_trailer_describes_the_object_before_it() -> None:
    tail = encode_tail(blake3(b"x").digest(), 10, [(7, b"")])
    assert decode_trailer(tail[-TRAILER.size :]) == check_tail(tail) == (1, 10, 7 + len(tail), blake3(b"x").digest())
    with pytest.raises(ObjectDamaged):
        decode_trailer(bytes(TRAILER.size))
    with pytest.raises(ObjectDamaged):
        decode_trailer(b"")
