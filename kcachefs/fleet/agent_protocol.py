"""What a worker and its mount's fleet agent say to each other: one msgpack message per packet of a socket pair.

    worker                                agent
            ◀── Alive                     when they meet, every half second while it fetches, and when something changes
            ◀── IndexReady                there is a new local index to map
    Fetch ──▶
            ◀── Parcel, with a descriptor some entries of a pack, checked and decoded (`parcels.py`)
            ◀── Lost                      the pack cannot be had, or not now
    Refresh ──▶                           something was missing: look for a newer index
    Offer, with a descriptor ──▶          entries to publish
            ◀── Taken                     whether they are in the bucket, are refused, or are to be offered again
    Used ──▶                              entries that must not age out of the bucket

The worker has no network, and the agent has no mount. Either may die at any time: the supervisor starts another agent
and hands each side its end of a new pair. docs/protocols.md describes it in full.
"""

from __future__ import annotations

import contextlib
import os
import socket

import msgspec

from kcachefs.fleet.pack_records import PackReference

MESSAGE_MAX = 64 << 10
HUNG = b"hung"
"""The message with which a worker reports to the supervisor that the agent has been silent for too long."""
ALIVE_SECONDS = 0.5
"""How often, in seconds, a fetching agent says that it is alive."""
INTRODUCTION_SECONDS = 10.0
"""How long, in seconds, an agent that cannot work waits for a worker to which it can report that."""


class Fetch(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A lookup waits for an entry of this pack."""

    reference: PackReference
    ahead: bool
    """Whether to fetch the packs that were published together with it, too."""


class Refresh(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A lookup missed an entry that the index does not name."""


class Offer(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Entries to publish as one pack; a parcel comes with it."""

    batch: str
    run: str
    compile_ms: int


class Used(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The keys of recently used entries, which are published again before the bucket deletes them."""

    keys: list[int]


class Alive(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The agent's state."""

    open_for: float
    """For how many seconds the bucket is left alone because it failed; 0 if it may be asked."""
    why: str
    """What failed last; empty if nothing did."""
    requests: int
    fetched_bytes: int
    published: int
    """How many packs this agent has published."""


class IndexReady(msgspec.Struct, tag=True, array_like=True, frozen=True):
    path: str


class Parcel(msgspec.Struct, tag=True, array_like=True, frozen=True):
    reference: PackReference
    is_last: bool


class Lost(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A pack cannot be had. The worker does not ask for it again for this many seconds."""

    reference: PackReference
    why: str
    seconds: float


class Taken(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """What became of an offer. It is done once published, here or by somebody else, or refused for good. Otherwise it
    is to be offered again."""

    batch: str
    is_done: bool
    why: str = ""
    is_fault: bool = False
    """The bucket or the disk failed: other offers would fare no better now."""


ToAgent = Fetch | Refresh | Offer | Used
ToWorker = Alive | IndexReady | Parcel | Lost | Taken
_encode = msgspec.msgpack.Encoder().encode
_to_agent = msgspec.msgpack.Decoder(ToAgent)
_to_worker = msgspec.msgpack.Decoder(ToWorker)


def send(channel: socket.socket, message: ToAgent | ToWorker, fd: int = -1) -> bool:
    """Send a message; returns False if the other side is gone, or the channel is full and does not block."""
    with contextlib.suppress(OSError):
        socket.send_fds(channel, [_encode(message)], [fd] if fd >= 0 else [])
        return True
    return False


def tell_failure(control: socket.socket, why: str) -> None:
    """Tell the worker why this agent cannot work. The worker remembers the reason, so the agent may then exit.

    `control` is where the supervisor sends the descriptor of a channel to the worker.
    """
    control.settimeout(INTRODUCTION_SECONDS)
    with contextlib.suppress(OSError):
        _, fds, _, _ = socket.recv_fds(control, 64, 1)
        for fd in fds:
            with socket.socket(fileno=fd) as channel:
                channel.settimeout(INTRODUCTION_SECONDS)
                send(channel, Alive(INTRODUCTION_SECONDS, why, 0, 0, 0))
                channel.shutdown(socket.SHUT_WR)
                while channel.recv(MESSAGE_MAX):  # closing with unread data would lose our message
                    pass


def receive_from_agent(channel: socket.socket) -> tuple[ToWorker | None, int]:
    """The next message, None when the agent is gone; and the descriptor that came with it, or -1."""
    raw, fd = _receive(channel)
    return (_to_worker.decode(raw) if raw else None), fd


def receive_from_worker(channel: socket.socket) -> tuple[ToAgent | None, int]:
    raw, fd = _receive(channel)
    return (_to_agent.decode(raw) if raw else None), fd


def _receive(channel: socket.socket) -> tuple[bytes, int]:
    try:
        raw, fds, _, _ = socket.recv_fds(channel, MESSAGE_MAX, 1)
    except OSError:
        return b"", -1
    if len(fds) > 1:  # our own code never sends two
        for fd in fds[1:]:
            os.close(fd)
    return raw, fds[0] if fds else -1
