"""One user's malformed kernels on a shared mount: everybody else still lists, explains, pins and evicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs import foreign_json
from kcachefs.core.readable_names import bytecode_name, kernel_facts, readable
from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import autograd, graphs, triton_ir
from kcachefs.session import warming
from tests.cli.scene import Scene, scene
from tests.waiting import ending_soon

SOUND = {"name": "add", "target": {"backend": "cuda", "arch": 90}, "num_warps": 4, "num_stages": 3, "shared": 0}
DEEP = b"[" * 100_000
HOSTILE = {
    "deep": DEEP,
    "deep objects": b'{"a":' * 100_000,
    "deep and whole": json.dumps({**SOUND, "name": "@"}).replace('"@"', "[" * 900 + "]" * 900).encode(),
    "large number": json.dumps({**SOUND, "num_warps": 123456789012345678901}).encode(),
    "digits": json.dumps(SOUND).replace("4", "4" * 10_000).encode(),
    "half a character": json.dumps({**SOUND, "name": "a\ud800b"}).encode(),
    "half a version": json.dumps({**SOUND, "triton_version": "\udcff"}).encode(),
    "half a key": json.dumps({**SOUND, "\ud800": 1}).encode(),
    "long": json.dumps({**SOUND, "name": "x" * 300_000, "num_warps": ["y" * 300_000]}).encode(),
    "no UTF-8": b'{"name": "\xff\xfe"}',
}


def put(place: Scene, key: str, told: bytes, mountpoint: Path | None = None) -> None:
    folder = (mountpoint or place.mountpoint) / "triton" / key
    folder.mkdir(parents=True)
    (folder / "add.json").write_bytes(told)
    (folder / "add.ttir").write_bytes(b"tt.func public @add(%a: i32) {\n")
    (folder / "__grp__add.json").write_text(json.dumps({"child_paths": {}}))


@pytest.fixture(name="place", scope="module")
def a_place() -> Iterator[Scene]:
    """A mount with a sound kernel and one of each malformed kind."""
    with scene() as made:
        made.mount()
        put(made, "SOUND", json.dumps(SOUND).encode())
        for number, told in enumerate(HOSTILE.values()):
            put(made, f"BAD{number}", told)
        made.settle()
        yield made


@pytest.mark.mount
def test_entries_are_listed_and_found_by_name(place: Scene) -> None:
    named = {one["path"]: one["name"] for one in json.loads(place.must("ls", "--json"))}
    assert len(named) == len(HOSTILE) + 1
    assert named["triton/SOUND"] == "add sm_90, 4 warps, 3 stages"
    assert max(map(len, named.values())) < 1000
    assert len(json.loads((place.mountpoint / ".kcachefs" / "entries.json").read_bytes())) == len(named)
    for verb in ("pin", "unpin"):
        assert "1 entry" in place.must(verb, "add sm_90*")
    assert "would evict 1 entry" in place.must("evict", "--dry-run", "add sm_90*")


@pytest.mark.mount
@pytest.mark.parametrize(
    "words",
    [("kernels",), ("explain", "--since", "1h"), ("explain", "--waste"), ("top", "--once"), ("report", "-o", "a.html")],
    ids=" ".join,
)
def test_insight_tells_of_the_others(place: Scene, words: tuple[str, ...]) -> None:
    place.must(*words)
    if words == ("kernels",):
        rows = json.loads(place.must("kernels", "--json"))
        assert "triton/SOUND" in {one["path"] for one in rows}
    elif "--since" in words:
        found = json.loads(place.must(*words, "--json"))
        said = {one["path"]: one["causes"][0]["words"] for one in found["entries"]}
        numbers = {name: number for number, name in enumerate(HOSTILE)}
        assert "nested too deeply" in said[f"triton/BAD{numbers['deep']}"]
        assert "more than 64 bits" in said[f"triton/BAD{numbers['large number']}"]
        assert "half a character" in said[f"triton/BAD{numbers['half a version']}"]


@pytest.mark.mount
def test_a_report_that_fails_does_not_change_how_a_command_ended(place: Scene) -> None:
    place.in_every_python(
        "import sys\n"
        "if 'exit 3' in sys.argv:\n"
        "    import kcachefs.live.web.report\n"
        "    def fail(*words, **options): raise OverflowError('a\\x1bbug')\n"
        "    kcachefs.live.web.report.make_report = fail\n"
    )
    words = ("run", "--mount", place.mountpoint, "--report", "run.html", "--", "sh", "-c", "exit 3")
    outcome = place.run(*words, env=place.environment)
    assert outcome.code == 3, outcome
    assert "kcachefs: no report was written: a\\x1bbug\n" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("told", HOSTILE.values(), ids=HOSTILE)
def test_a_name_can_be_written_and_is_short(told: bytes) -> None:
    def read(path: tuple[bytes, ...]) -> bytes:
        return told

    for name in (
        readable(b"triton", (b"KEY",), read, [b"__grp__a.json", b"a.json"]),
        bytecode_name((b"cpython-311-4f05", b"opt", b"site-packages", b"yaml"), told),
        *kernel_facts(read, [b"__grp__a.json"]).values(),
    ):
        assert len(name.encode()) < 1000


def test_texts_made_to_take_long_tell_their_name_soon() -> None:
    texts = (
        b"tt.func public @" * 60_000,
        b"tt.func public @a(" * 55_000,
        b"tt.func public @a(" + b") " * 500_000,
        b"tensor<" + b"1" * 1_000_000,
        b"AOT ID: ['" + b"1" * 5000 + b"_forward']",
    )
    for text in texts:
        with ending_soon():
            kernel_facts(lambda path, text=text: text, [b"a.ttir"])  # type: ignore[misc]
            readable(b"inductor", (b"fxgraph", b"a", b"b"), lambda path, text=text: text, [b"a"])  # type: ignore[misc]


@pytest.mark.parametrize(
    "told", [DEEP, b"1" * 30, b'"\\ud800"', b'{"\\ud800": 1}', b"[" * 70 + b"]" * 70, b"{", b"\xff"]
)
def test_what_could_not_be_written_down_again_is_refused(told: bytes) -> None:
    with pytest.raises(ValueError):
        foreign_json.decoded(told, limit=1 << 20)


def test_what_is_too_large_is_refused() -> None:
    assert foreign_json.decoded(b"[1, -9223372036854775808, 18446744073709551615]", limit=50)[2] == (1 << 64) - 1
    with pytest.raises(ValueError, match="too large"):
        foreign_json.decoded(b" " * 51, limit=50)


def test_a_pickle_with_numbers_and_texts_that_cannot_be_written() -> None:
    long = b"\x8b" + (5000).to_bytes(4, "little") + b"\x7f" * 5000
    half = b"\x8c\x03\xed\xa0\x80"
    built = b"\x80\x04\x8c\x01m\x8c\x0fCompiledFxGraph\x93)R}"
    kwargs = built + b"\x8c\x09fx_kwargs}\x8c\x01a" + long + b"ss\x8c\x13_fx_graph_cache_key" + half + b"sb."
    graph = graphs.read("inductor/fxgraph/x", 0.0, kwargs)
    assert graph.key == "\\ud800"
    assert graph.ingredients["fx_kwargs[a]"][0].startswith("0x7f7f")
    entry = built.replace(b"\x0fCompiledFxGraph", b"\x10AOTAutogradEntry") + b"b."
    assert autograd.read("inductor/aotautograd/x", 0.0, entry).inputs == []
    bomb = b"\x80\x04K\x01" + b"2\x86" * 200 + b"\x8c\x01n\x93."
    with ending_soon(), pytest.raises(ArtefactGarbled):
        graphs.read("inductor/fxgraph/x", 0.0, bomb)


def test_an_argument_divisible_by_thousands_of_digits() -> None:
    written = "  tt.func public @a(%x: i32 {tt.divisibility = " + "1" * 5000 + " : i32}) {\n"
    assert triton_ir.read(written)[0].arguments["x"].divisible == 111_111_111


def test_a_nested_record_of_warming_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(DEEP)
    assert warming._read(tmp_path / "record") == {}


@pytest.mark.mount
def test_a_folder_with_names_that_are_not_utf_8(tmp_path: Path, place: Scene) -> None:
    folder = tmp_path / "triton" / "K\udcff"
    folder.mkdir(parents=True)
    (folder / "a\udcff.json").write_text(json.dumps(SOUND))
    (folder / "__grp__a\udcff.json").write_text("{}")
    (entry,) = json.loads(place.must("explain", "--json", "--folder", tmp_path, "--since", "1h"))["entries"]
    assert entry["path"] == "triton/K\ufffd"
