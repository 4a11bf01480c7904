"""One encoding for each meaning, and no encoding for two."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcachefs.errors import Unkeyable
from kcachefs.keys.encoding import digest, encode, flat
from kcachefs.keys.functions import hash_value
from tests.keys.strategies import meaning, plain


@given(plain, plain)
def test_equal_encodings_are_equal_meanings(one: Any, two: Any) -> None:
    assert (encode(one) == encode(two)) == (meaning(one) == meaning(two))


@given(plain, plain)
def test_no_encoding_begins_another(one: Any, two: Any) -> None:
    if meaning(one) != meaning(two):
        assert not encode(one).startswith(encode(two))


@given(st.dictionaries(st.text(), st.integers()), st.randoms(use_true_random=False))
def test_the_order_of_a_dictionary_does_not_show(mapping: dict[str, int], random: Any) -> None:
    items = list(mapping.items())
    random.shuffle(items)
    assert encode(dict(items)) == encode(mapping)


@given(st.lists(st.binary(max_size=4)), st.lists(st.binary(max_size=4)))
def test_a_flat_list_cannot_be_shifted(one: list[bytes], two: list[bytes]) -> None:
    assert (flat(one) == flat(two)) == (one == two)


@given(st.binary())
def test_two_kinds_of_key_never_meet(content: bytes) -> None:
    kinds = ["value", "function", "program", "graph", "tensors", "project"]
    assert len({digest(kind, content) for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("value", [object(), {"a": [lambda: 0]}, {1: {object()}}])
def test_what_is_not_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(Unkeyable):
        encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Unkeyable, match="contains itself"):
        hash_value(ring)


@pytest.fixture(scope="module")
def another_process() -> Iterator[tuple[IO[str], IO[str]]]:
    """A Python with another hash seed that answers the key of each literal it is given."""
    script = (
        "import sys, ast\nfrom kcachefs.keys import hash_value\n"
        "for line in sys.stdin:\n    print(hash_value(ast.literal_eval(line)), flush=True)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout


@given(value=plain)
def test_another_process_gives_the_same_key(another_process: tuple[IO[str], IO[str]], value: Any) -> None:
    text = ascii(value)
    try:
        read_back = ast.literal_eval(text)
    except ValueError:  # infinities and frozensets have no literal
        return
    questions, answers = another_process
    questions.write(text + "\n")
    questions.flush()
    assert answers.readline().strip() == hash_value(read_back)
