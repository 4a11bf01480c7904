"""Frames: what was encoded is decoded, and anything else is refused."""

from __future__ import annotations

import io
import os

import pytest
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
    tail_length,
)


@given(st.binary(max_size=5000), st.integers(1, 30), st.integers(-5, 19))
def test_a_frame_comes_back(data: bytes, times: int, level: int) -> None:
    codec = Codec(level)
    assert codec.decode_frame(codec.encode_frame(data * times), len(data) * times) == data * times


@pytest.mark.parametrize("size", [0, 1, FRAME_SIZE - 1, FRAME_SIZE, FRAME_SIZE + 1, 3 * FRAME_SIZE, 3 * FRAME_SIZE + 7])
def test_the_last_frame_begins_where_the_others_end(size: int) -> None:
    assert last_frame(size) == sum(map(len, split(bytes(size))[:-1]))


def test_what_does_not_shrink_is_stored_raw() -> None:
    data = os.urandom(10_000)
    assert Codec().encode_frame(data) == data
    assert len(Codec().encode_frame(bytes(10_000))) < 100


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_frame_of_the_wrong_length_or_no_frame_at_all_is_damage(stored: bytes, length: int) -> None:
    try:
        plain = Codec().decode_frame(stored, length)
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
    tail = encode_tail(digest, size, [(len(frame), frame_check(frame)) for frame in frames])
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
