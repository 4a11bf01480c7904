"""Keys of programs and of projects: options, includes, compiler versions, trees of files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcachefs.errors import Unkeyable, UsageError
from kcachefs.keys import program_key, project_fingerprint

texts = st.text(max_size=6)
arguments = st.fixed_dictionaries(
    {
        "code": texts,
        "options": st.lists(texts, max_size=3),
        "target": st.sampled_from(["ptx", "cubin", "ltoir"]),
        "arch": texts,
        "compiler_version": st.text(min_size=1, max_size=4),
        "name": texts,
        "name_expressions": st.lists(texts, max_size=3),
        "extra_sources": st.lists(st.tuples(texts, texts), max_size=2),
        "headers": st.dictionaries(texts, texts, max_size=2),
    }
)
PLAIN: dict[str, Any] = {"target": "cubin", "arch": "sm_90", "compiler_version": "13.4"}


@given(arguments, arguments)
def test_keys_meet_only_where_all_arguments_do(one: dict[str, Any], two: dict[str, Any]) -> None:
    def told(given: dict[str, Any]) -> Any:
        return {**given, "name_expressions": sorted(given["name_expressions"])}

    assert (program_key(**one) == program_key(**two)) == (told(one) == told(two))


@given(arguments, st.data())
def test_one_changed_argument_changes_the_key(given_: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(given_)))
    other = {**given_, name: data.draw(arguments)[name]}
    if name == "name_expressions":
        same = sorted(other[name]) == sorted(given_[name])
    else:
        same = other[name] == given_[name]
    assert (program_key(**other) == program_key(**given_)) == same


long_options = st.lists(
    st.sampled_from(["--std=c++17", "--fmad=true", "--restrict", "--use_fast_math", "--maxrregcount=32"]), unique=True
)


@given(long_options, st.data())
def test_normalised_options_may_change_places(options: list[str], data: st.DataObject) -> None:
    other = data.draw(st.permutations(options))
    same = program_key("", options, option_order="normalised", **PLAIN)
    assert program_key("", other, option_order="normalised", **PLAIN) == same
    assert (program_key("", other, **PLAIN) == program_key("", options, **PLAIN)) == (other == options)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (["-D", "A", "-U", "B"], ["-D", "B", "-U", "A"]),
        (["-DA=1", "-DA=2"], ["-DA=2", "-DA=1"]),
        (["-DA", "-UA"], ["-UA", "-DA"]),
        (["-Ione", "-Itwo"], ["-Itwo", "-Ione"]),
        (["-Ione", "--include-path=two"], ["--include-path=two", "-Ione"]),
        (["--fmad=true", "--fmad=false"], ["--fmad=false", "--fmad=true"]),
        (["-Xptxas", "-O1", "-Xptxas", "-O3"], ["-Xptxas", "-O3", "-Xptxas", "-O1"]),
        (["-O2", "-O3"], ["-O3", "-O2"]),
    ],
)
def test_normalising_keeps_what_depends_on_order(one: list[str], two: list[str]) -> None:
    keys = [program_key("", options, option_order="normalised", **PLAIN) for options in (one, two)]
    assert keys[0] != keys[1]


def test_the_compiler_must_be_known() -> None:
    with pytest.raises(UsageError, match="compiler's version"):
        program_key("", target="ptx", arch="sm_90", compiler_version="")


def test_options_in_one_string_are_refused() -> None:
    with pytest.raises(UsageError, match="one item for each option"):
        program_key("", "-lineinfo", **PLAIN)


class Headers:
    """A search path of two folders, and the key of a source that includes from it."""

    def __init__(self, root: Path) -> None:
        self.folders = [root / "first", root / "second"]
        for folder in self.folders:
            (folder / "detail").mkdir(parents=True)

    def write(self, name: str, text: str, folder: int = 1) -> None:
        (self.folders[folder] / name).write_text(text)

    def key(self, source: str) -> str:
        return program_key(source, include_paths=self.folders, **PLAIN)


@pytest.fixture
def headers(tmp_path: Path) -> Headers:
    made = Headers(tmp_path / "a")
    made.write("outer.h", '#include "detail/inner.h"\n')
    made.write("detail/inner.h", '#include "beside.h"\n')
    made.write("detail/beside.h", "#define N 1\n")
    made.write("unused.h", "#define U 1\n")
    made.write("names.h", '#define WHICH "outer.h"\n')
    return made


@pytest.mark.parametrize(
    "directive",
    [
        '#include "outer.h"',
        "#include <outer.h>",
        "  #  include   /* why */ <outer.h>",
        '#incl\\\nude "outer.h"',
        '%:include "outer.h"',
        '/* why */ #include "outer.h"',
        '/* why\n */ /* and */ # /* what\n */ include /* how\n */ "outer.h"',
        '\f#\vinclude "outer.h"',
        'char s[] = "# /*";\n#include "outer.h"\n/**/ include',
        '#inc??/\nlude "outer.h"',
        '#if 0\n#include "outer.h"\n#endif',
        '#if __has_include("outer.h")\n#endif',
        '#if __has_include /* why */ (/* what */ "outer.h")\n#endif',
        '#define WHICH "outer.h"\n#include WHICH',
        "#define WHICH OTHER // what\n#define OTHER <outer.h>\n#include WHICH",
        '#include "names.h"\n#include WHICH',
    ],
)
def test_the_contents_of_includes_are_in_the_key(headers: Headers, directive: str) -> None:
    before = headers.key(directive)
    assert headers.key(directive) == before
    headers.write("detail/beside.h", "#define N 2\n")
    assert headers.key(directive) != before
    headers.write("detail/beside.h", "#define N 1\n")
    assert headers.key(directive) == before


@pytest.mark.parametrize(
    "source",
    [
        "#include WHICH",
        '#include /* why */ WHICH /* what */ "nothing.h"',
        "#define OF(x) #x\n#include OF(outer.h)",
        "#define WHICH OF(x)\n#include WHICH",
        "#define N outer.h\n#define WHICH <N>\n#include WHICH",
        "#if __has_include(WHICH)\n#endif",
        "#define HAS(x) __has_include(x)\n#if HAS(WHICH)\n#endif",
        '#include "asks.h"',
    ],
)
def test_an_include_that_cannot_be_followed_is_refused(headers: Headers, source: str) -> None:
    headers.write("asks.h", "#include UNKNOWN\n")
    with pytest.raises(Unkeyable, match=r"whose value cannot be read; include the file by its name.*`headers`"):
        headers.key(source)


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ('#define HAS __has_include\n#if HAS("outer.h")\n#endif', ""),
        ("#define OTHER __has_include // what\n#define HAS OTHER\n#if HAS(<outer.h>)\n#endif", ""),
        ('#define HAS(x) __has_##x\n#if HAS(include)("outer.h")\n#endif', ""),
        ('#define ASKED ("outer.h")\n#if defined(__has_include) && __has_include ASKED\n#endif', ""),
        ('#if HAS("outer.h")\n#endif', "-DHAS=__has_include"),
        ('#include "asks.h"\n#if HAS("outer.h")\n#endif', ""),
    ],
)
def test_a_probe_under_another_name_is_refused(headers: Headers, source: str, option: str) -> None:
    headers.write("asks.h", "#define HAS __has_include\n")
    with pytest.raises(Unkeyable, match=r"hands __has_include on to a macro in '.*; write __has_include"):
        program_key(source, [option] if option else [], include_paths=headers.folders, **PLAIN)


@pytest.mark.parametrize(
    "source",
    [
        '#ifdef __has_include\n#if __has_include ("outer.h")\n#endif\n#endif // __has_include',
        "#if defined(__has_include) || defined __has_include // __has_include\n#endif",
        "#ifndef __has_include\n# define __has_include(x) 0\n#endif",
        "#ifndef __has_include\n#define __has_include 0\n#endif",
        '#if __has_include("outer.h")  // __has_include needs C++17\n#endif',
        '#define NEEDS "a compiler with __has_include"',
        "/* Usage:\n#if __has_include is supported\n*/",
        "#define HAS_EXTENSION(x) __has_extension_##x",
        "#define HAS_TYPE(x) template <typename T> struct __has_##x { static const bool value = true; };",
        "// __has_include\n#define A(x) x##_include /* __has_include */\n#undef __has_include",
    ],
)
def test_to_speak_of_a_probe_is_not_to_hand_it_on(headers: Headers, source: str) -> None:
    assert headers.key(source)


@pytest.mark.parametrize(
    ("source", "option", "given"),
    [
        ('#define WHERE __FILE__\n#include "says.h"', "", ""),
        ('#define WHERE_(x) \\\n  __FILE__\n#include "says.h"', "", ""),
        ('char* where(char* file = __builtin_FILE());\n#include "says.h"', "", ""),
        ('#include "says.h"', "-DWHERE=__FILE__", ""),
        ('#include "given.h"\n#include "says.h"', "", "#define WHERE __FILE__"),
    ],
)
def test_paths_count_where_a_macro_may_tell_them(tmp_path: Path, source: str, option: str, given: str) -> None:
    def key(folder: str, source: str, options: list[str]) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "says.h").write_text("char* file = WHERE;\n")
        return program_key(source, options, headers={"given.h": given}, include_paths=[tmp_path / folder], **PLAIN)

    options = [option] if option else []
    assert key("a", source, options) != key("b", source, options)
    if not given:
        own = 'char* name = __FILE__;\n#include "says.h"'
        assert key("a", own, []) == key("b", own, [])


def test_a_macro_that_the_options_define_is_followed(headers: Headers) -> None:
    def key() -> str:
        return program_key("#include WHICH", ['-DWHICH="outer.h"'], include_paths=headers.folders, **PLAIN)

    before = key()
    headers.write("detail/beside.h", "#define N 2\n")
    assert key() != before


def test_a_header_that_is_not_included_does_not_count(headers: Headers) -> None:
    before = headers.key('#include "outer.h"')
    headers.write("unused.h", "#define U 2\n")
    assert headers.key('#include "outer.h"') == before


def test_a_header_that_appears_earlier_on_the_path_counts(headers: Headers) -> None:
    before = headers.key('#include "outer.h"')
    headers.write("outer.h", '#include "detail/inner.h"\n', folder=0)
    assert headers.key('#include "outer.h"') != before


MEANT = [("detail/value.h", 0), ("value.h", 0), ("value.h", 1)]


@pytest.mark.parametrize(("name", "folder"), MEANT)
def test_every_file_that_an_include_can_mean_counts(headers: Headers, name: str, folder: int) -> None:
    headers.write("detail/user.h", "#include <value.h>\n", folder=0)
    for one, place in MEANT:
        headers.write(one, "#include_next <value.h>\n", folder=place)
    before = headers.key('#include "detail/user.h"')
    headers.write(name, "#define V 1\n", folder=folder)
    assert headers.key('#include "detail/user.h"') != before


def test_a_header_included_by_its_absolute_path_counts(tmp_path: Path) -> None:
    source = f'#include "{tmp_path}/value.h"\n'
    (tmp_path / "value.h").write_text('#include "beside.h"\n')
    before = program_key(source, **PLAIN)
    (tmp_path / "beside.h").write_text("#define V 1\n")
    assert program_key(source, **PLAIN) != before


def test_a_file_beside_a_header_given_as_text_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"detail/given.h": '#include "value.h"\n'}
    before = program_key("", headers=given, **PLAIN)
    Path("detail").mkdir()
    Path("detail/value.h").write_text("#define V 1\n")
    assert program_key("", headers=given, **PLAIN) != before


def test_headers_that_change_places_count(headers: Headers) -> None:
    source = '#include "a/x.h"\n#include "b/x.h"\n'
    for folder, value in (("a", 1), ("b", 2)):
        (headers.folders[0] / folder).mkdir()
        headers.write(f"{folder}/x.h", '#include "value.h"', folder=0)
        headers.write(f"{folder}/value.h", f"#define V{value}", folder=0)
    before = headers.key(source)
    headers.write("a/value.h", "#define V2", folder=0)
    headers.write("b/value.h", "#define V1", folder=0)
    assert headers.key(source) != before


def test_where_the_folders_lie_does_not_count(headers: Headers, tmp_path: Path) -> None:
    before = headers.key('#include "outer.h"')
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    headers.folders = [tmp_path / "b" / "first", tmp_path / "b" / "second"]
    assert headers.key('#include "outer.h"') == before


names = st.text("ab", min_size=1, max_size=2)
trees = st.dictionaries(st.lists(names, min_size=1, max_size=2).map("/".join), st.binary(max_size=3), max_size=4)


def write_tree(root: Path, tree: dict[str, bytes]) -> dict[str, bytes]:
    """Writes as much of the tree as a filesystem allows, and returns that."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    written = {}
    for name, content in sorted(tree.items()):
        path = root / name
        if path.is_dir() or any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written[name] = content
    return written


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(trees, trees)
def test_fingerprints_meet_only_where_the_trees_do(
    tmp_path: Path, one: dict[str, bytes], two: dict[str, bytes]
) -> None:
    one, two = write_tree(tmp_path / "one", one), write_tree(tmp_path / "another name", two)
    same = project_fingerprint(tmp_path / "one") == project_fingerprint(tmp_path / "another name")
    assert same == (one == two)


def test_times_and_left_overs_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1")
    before = project_fingerprint(tmp_path)
    os.utime(tmp_path / "a.py", (0, 0))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    (tmp_path / "a.py~").write_text("A = 0")
    assert project_fingerprint(tmp_path) == before


def test_links_are_followed_to_files_and_told_for_folders(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1")
    (tmp_path / "ring").symlink_to(tmp_path.name)
    (tmp_path / "link.py").symlink_to("a.py")
    before = project_fingerprint(tmp_path)
    (tmp_path / "a.py").write_text("A = 2")
    assert project_fingerprint(tmp_path) != before


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        project_fingerprint(tmp_path / "nothing")
