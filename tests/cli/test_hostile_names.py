"""Names that could steer a terminal: no JSON and no metric prints them raw, and both still say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kcachefs.core.metrics import as_metrics
from kcachefs.core.report import Numbers, Statistics, StoreNumbers
from tests.cli.scene import Scene, scene
from tests.insight.test_hostile_users import SOUND, put

STEERING = "\u009b31m\u202eko\u2066\x7f\U000e0001"
KEY = f"日本{STEERING}"
NAMESPACE = f"ns\x1b]0;title\x07\u009d{STEERING}"


@pytest.fixture(name="place", scope="module")
def a_place() -> Iterator[Scene]:
    with scene() as made:
        made.mount()
        put(made, KEY, json.dumps({**SOUND, "name": f"add{STEERING}"}).encode())
        folder = made.mountpoint / NAMESPACE / KEY
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"code")
        made.settle()
        yield made


def is_harmless(text: str) -> bool:
    return all(one.isprintable() or one == "\n" for one in text)


@pytest.mark.mount
@pytest.mark.parametrize(
    "words",
    [
        *("ls", "stats", "stats --by namespace", "kernels", "explain --since 1h", "explain --waste", "runs", "status"),
        *("prune --unused --dry-run", "evict --dry-run ENTRY", "pin ENTRY", "unpin ENTRY", "show ENTRY", "top --once"),
        *("show --source ENTRY", "gc"),
    ],
)
def test_json_has_no_character_that_steers(place: Scene, words: str) -> None:
    entry = f"triton/{KEY}"
    said = place.must(*(entry if one == "ENTRY" else one for one in words.split()), "--json")
    assert is_harmless(said), said
    told = json.dumps(json.loads(said), ensure_ascii=False)
    if words in ("ls", "kernels", "explain --since 1h", "pin ENTRY", "evict --dry-run ENTRY", "show ENTRY"):
        assert json.dumps(entry, ensure_ascii=False) in told
    if words == "stats":
        assert json.dumps(NAMESPACE, ensure_ascii=False) in told
    if "日本" in told and not words.startswith("top"):
        assert "日本" in said, "what can be read stays readable"


@pytest.mark.mount
def test_a_text_of_an_entry_is_json_too(place: Scene) -> None:
    told = json.loads(place.must("show", "--source", f"triton/{KEY}", "--json"))
    assert told == {"path": f"triton/{KEY}", "source": "tt.func public @add(%a: i32) {\n"}
    place.run("show", "--ptx", f"triton/{KEY}", "--json").refused_with(2, "holds no ptx")


@pytest.mark.mount
def test_metrics_have_no_character_that_steers(place: Scene) -> None:
    said = (place.mountpoint / ".kcachefs" / "metrics").read_text(encoding="utf-8")
    assert is_harmless(said)
    assert 'kcachefs_entries{namespace="ns\\\\x1b]0;title\\\\x07\\\\x9d' in said


def test_folders_that_are_shown_alike_have_one_label() -> None:
    numbers, store = Numbers(1, 2, 30, 10, 3.0, 5, 5, 0.5, 7, 8, 9, 1e9), StoreNumbers(1, 2, 3, 1.5, 4, 5, 6, 7, 8, 9)
    both = {"a\x1b": numbers, "a\\x1b": numbers}
    lines = as_metrics(Statistics(numbers, store, both, {})).decode().splitlines()
    assert [one for one in lines if one.startswith("kcachefs_entries{")] == ['kcachefs_entries{namespace="a\\\\x1b"} 2']
