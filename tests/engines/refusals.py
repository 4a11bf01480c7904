"""Says which error a test expects."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(*numbers: int) -> Iterator[None]:
    """The block must end in an OSError with one of these error numbers."""
    with pytest.raises(OSError) as caught:
        yield
    expected = " or ".join(errno.errorcode[number] for number in numbers)
    got = errno.errorcode.get(caught.value.errno or 0, repr(caught.value))
    assert caught.value.errno in numbers, f"refused with {got}, not {expected}"
