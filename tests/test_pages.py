"""CONTRIBUTING.md, SECURITY.md and the pages about architecture and concurrency, compared with the code.

What a page puts between backticks is checked by its form:

- `core/tree.py`, `docs/`: a file or folder, from the top of the checkout or of the package
- `core/tree.py: Tree.rename`: something that this file defines
- `Tree.rename`, `libc.fallocate`: a member of a class, a name in a module
- `slots.SLOT_SIZE` (1 MiB): a constant, which has to be followed by its value
- `kcachefs mount --policy`, `scripts/test --fast`: options that the command has
"""

from __future__ import annotations

import ast
import dis
import importlib
import os
import random
import re
import threading
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio
import typer

from kcachefs.cli import make_app
from kcachefs.core import Filesystem, FsOptions, accounts, layouts, unsealed
from kcachefs.core.caller import Caller
from kcachefs.core.limits import Limits
from kcachefs.core.sharing import POLICIES
from kcachefs.daemon import syscall_filter, worker_process
from kcachefs.daemon.confinement import NO_LANDLOCK
from kcachefs.daemon.control import AT_ONCE, CONNECTIONS_MAX
from kcachefs.errors import NoSpace
from kcachefs.store import Options, Store
from kcachefs.store.inode_numbers import ROOT_INO
from tests.syntax import nodes_of, syntax_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kcachefs"
CONTRIBUTING, ARCHITECTURE, CONCURRENCY = "CONTRIBUTING.md", "docs/architecture.md", "docs/concurrency.md"
SECURITY = "SECURITY.md"
PAGES = (CONTRIBUTING, ARCHITECTURE, CONCURRENCY, SECURITY)

FOREIGN = {"/dev/fuse", "linux/fuse.h", "torch.compile", "ccache.conf"}

# --- reading a page ---------------------------------------------------------------------------------------------------


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> str:
    """The page without its drawings and commands, each paragraph in one line."""
    without = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\n +(?=\S)", " ", re.sub(r"(?<=[^\n|])\n(?=[^\n|#\-\d ])", " ", without))


@cache
def codes(page: str) -> tuple[str, ...]:
    """Everything between backticks."""
    return tuple(re.findall(r"`([^`\n]+)`", prose(page)))


def commands(page: str) -> list[str]:
    """Lines of fenced blocks of commands, and everything between backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return [*(line for block in blocks for line in block.splitlines()), *codes(page)]


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of any depth."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text_of(page), flags=re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading!r}"
    return found[1]


def rows(page: str, heading: str) -> list[list[str]]:
    """The rows of every table under a heading, without their heads."""
    tables = re.findall(r"^\|.*?\n\|[ \-|]+\n((?:\|.*\n?)+)", section(page, heading), flags=re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for table in tables
        for line in table.splitlines()
    ]


def column(page: str, heading: str, number: int) -> list[str]:
    """What stands between backticks in one column."""
    return [code for row in rows(page, heading) for code in re.findall(r"`([^`]+)`", row[number])]


# --- reading the code -------------------------------------------------------------------------------------------------


@cache
def sources() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def located(name: str) -> Path | None:
    """A file or folder by its name on a page."""
    return next((path for path in (ROOT / name, PACKAGE / name) if path.exists()), None)


def targets(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What an assignment assigns, and to what."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            elif isinstance(target, ast.Tuple):
                yield from ((part, None) for part in target.elts)
            else:
                yield target, node.value
    elif isinstance(node, ast.AnnAssign):
        yield node.target, node.value


def members(node: ast.Module | ast.ClassDef) -> set[str]:
    """What a module or a class defines; of a class also what its methods assign to self, and its slots."""
    found = set()
    for part in node.body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(part.name)
        found |= {target.id for target, _ in targets(part) if isinstance(target, ast.Name)}
    if isinstance(node, ast.ClassDef):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign | ast.AnnAssign):
                found |= {target.attr for target, _ in targets(inner) if isinstance(target, ast.Attribute)}
    return found


@cache
def classes() -> dict[str, set[str]]:
    """The members of every class by its name, those of its bases included."""
    nodes = [node for path in sources() for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    own = {node.name: members(node) for node in nodes}
    bases = {node.name: [base.id for base in node.bases if isinstance(base, ast.Name)] for node in nodes}

    def everything(name: str) -> set[str]:
        return own.get(name, set()).union(*(everything(base) for base in bases.get(name, []) if base != name))

    return {name: everything(name) for name in own}


def defines(path: Path, name: str) -> bool:
    owner, _, member = name.partition(".")
    if not member:
        return owner in members(syntax_of(path))
    found = next((node for node in syntax_of(path).body if isinstance(node, ast.ClassDef) and node.name == owner), None)
    return found is not None and member in members(found)


def modules_called(name: str) -> list[ModuleType]:
    """The modules of that name, of the package or of the tests beside this one."""
    paths = [path for path in (*sources(), *ROOT.glob("tests/*.py")) if path.stem == name]
    return [importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in paths]


class Finder(ast.NodeVisitor):
    """Goes through a file and remembers where it is: in which class, and in which function of it."""

    def __init__(self, path: Path) -> None:
        self.place: list[str] = []
        self._globals: list[set[str]] = []
        self.made: dict[str, str] = {}
        """What is made and assigned: by its name on the page, the dotted name of what makes it."""
        self.called: dict[str, set[str]] = {}
        """Every call: by the dotted name of what is called, where."""
        self._prefix = name_of(path)
        self.visit(syntax_of(path))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node, set())

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node, {name for part in node.body if isinstance(part, ast.Global) for name in part.names})

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node, set())

    def _enter(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, shared: set[str]) -> None:
        self.place.append(node.name)
        self._globals.append(shared)
        self.generic_visit(node)
        self._globals.pop()
        self.place.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assignment(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assignment(node)

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        for target, value in targets(node):
            if isinstance(value, ast.Call):
                self.made[f"{self._prefix}: {self._target(target)}"] = dotted(value.func)
        self.generic_visit(node)

    def _target(self, target: ast.expr) -> str:
        if isinstance(target, ast.Attribute):
            return f"{self.place[0]}.{target.attr}"
        assert isinstance(target, ast.Name | ast.Subscript), ast.dump(target)
        name = target.id if isinstance(target, ast.Name) else ast.unparse(target)
        return ".".join((*(() if any(name in shared for shared in self._globals) else self.place), name))

    def visit_Call(self, node: ast.Call) -> None:
        where = self.place[:2] if self.place and self.place[0][:1].isupper() else self.place[:1]
        self.called.setdefault(dotted(node.func), set()).add(f"{self._prefix}: {'.'.join(where)}")
        self.generic_visit(node)


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


@cache
def finders() -> tuple[Finder, ...]:
    return tuple(Finder(path) for path in sources())


def places_of(*calls: str) -> set[str]:
    """Where any of these functions is called, as the pages write it."""
    return set().union(*(finder.called.get(call, set()) for finder in finders() for call in calls))


# --- names and numbers ------------------------------------------------------------------------------------------------

FILE = re.compile(r"[\w.\-/]+(?:\.(?:py|md|sh|txt|toml)|/)|(?:scripts|benchmarks)/\w+")
EMPTY = "no name of this form is on the page: has its form changed?"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_folder_on_a_page_exists(page: str) -> None:
    named = {code.partition(": ")[0].partition(" ")[0] for code in codes(page)}
    named = {name for name in named if FILE.fullmatch(name)} - FOREIGN
    assert len(named) > 5, EMPTY
    assert sorted(name for name in named if located(name) is None) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_on_a_page_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", prose(page))
    wrong = []
    for file, heading in links:
        path = (ROOT / page).parent / file if file else ROOT / page
        if not path.exists() or (heading and heading not in anchors(path)):
            wrong.append(f"{file}#{heading}")
    assert wrong == []


def anchors(path: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [CONTRIBUTING, CONCURRENCY])
def test_what_a_page_says_a_file_defines_is_defined_there(page: str) -> None:
    named = [code.split(": ") for code in codes(page) if re.fullmatch(r"[\w/]+\.py: [\w.]+", code)]
    assert named, EMPTY
    in_functions = {"_ask.answered", "unpack.pool", "until.event", "in_thread.ended"}
    in_functions |= {"ObstoreStorage._within.answers", "ObstoreStorage._stream.arriving"}
    in_functions |= {"ObstoreStorage._stream.given_up", "shown.is_over", "_wait.until_ended"}
    in_functions |= {"both.answers", "in_parallel.answers"}
    wrong = [
        f"{file}: {name}"
        for file, name in named
        if name not in in_functions and not ((path := located(file)) is not None and defines(path, name))
    ]
    assert wrong == []


@pytest.mark.parametrize("page", [ARCHITECTURE, CONCURRENCY])
def test_every_member_of_a_class_on_a_page_exists(page: str) -> None:
    named = {
        tuple(code.removesuffix("()").split("."))
        for code in codes(page)
        if re.fullmatch(r"[A-Z]\w*[a-z]\w*\.\w+(\(\))?", code)
    }
    assert named, EMPTY
    assert [f"{owner}.{name}" for owner, name in sorted(named) if name not in classes().get(owner, set())] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_a_module_on_a_page_exists(page: str) -> None:
    for code in codes(page):
        if re.fullmatch(r"[a-z_]+\.[a-z_]+(\(\))?", code) and not FILE.fullmatch(code) and code not in FOREIGN:
            module, name = code.removesuffix("()").split(".")
            known = modules_called(module) or [importlib.import_module(module)]
            assert any(hasattr(one, name) for one in known), code


UNITS = {"": 1, " s": 1, " ms": 1e-3, " bytes": 1, " KiB": 1 << 10, " MiB": 1 << 20}


@pytest.mark.parametrize("page", PAGES)
def test_every_constant_on_a_page_has_the_value_that_it_has_in_the_code(page: str) -> None:
    named = re.findall(r"`([a-z_]+)\.([A-Z][A-Z_]+)`(?: \((\d[\d.,/]*)( \w+)?\))?", prose(page))
    assert named, EMPTY
    for module, name, value, unit in named:
        assert value, f"{module}.{name} is not followed by its value"
        found = [getattr(one, name) for one in modules_called(module) if hasattr(one, name)]
        assert found == [pytest.approx(float(Fraction(value.replace(",", ""))) * UNITS[unit])], f"{module}.{name}"


# --- options ----------------------------------------------------------------------------------------------------------


@cache
def options() -> dict[str, set[str]]:
    """The options of every command."""
    group: Any = typer.main.get_command(make_app())
    return {
        verb: {option for parameter in command.params for option in parameter.opts}
        for verb, command in group.commands.items()
    }


def options_of(command: str) -> str | set[str]:
    """The options that a command line can have: a set, or a text in which they are."""
    if command.startswith("scripts/kcachefs --"):
        return (ROOT / "scripts/kcachefs").read_text()
    words = command.replace("scripts/kcachefs", "kcachefs").split()
    if words[0] == "kcachefs":
        return options()[words[1]]
    if words[0].startswith("-"):
        return set().union(*options().values()) | {"--quick"}
    if (module := re.search(r"-m (benchmarks\.\w+)", command)) is not None:
        return (ROOT / module[1].replace(".", "/")).with_suffix(".py").read_text()
    script = (ROOT / words[0]).read_text()
    inner = re.search(r"-m (benchmarks\.\w+)", script)
    return script + ((ROOT / inner[1].replace(".", "/")).with_suffix(".py").read_text() if inner else "")


def test_every_option_on_the_pages_exists() -> None:
    ours = ("kcachefs ", "scripts/", "benchmarks/", "python -m benchmarks.", "--")
    named = [command for page in PAGES for command in commands(page) if command.startswith(ours)]
    used = [(command, option) for command in named for option in re.findall(r"--[a-z][a-z\-]+", command)]
    assert len(used) > 5, EMPTY
    assert [command for command, option in used if option not in options_of(command)] == []


def test_every_verb_on_the_pages_exists() -> None:
    verbs = {
        word for page in PAGES for command in commands(page) for word in re.findall(r"\bkcachefs ([a-z]+)\b", command)
    }
    assert verbs - {"run"} - set(options()) == set()
    assert len(verbs) > 5, EMPTY


def test_every_variable_on_the_pages_is_read_by_somebody() -> None:
    readers = [*sources(), *ROOT.glob("tests/**/*.py"), *(path for path in ROOT.glob("scripts/*") if path.is_file())]
    known = "\n".join(path.read_text() for path in readers if path != Path(__file__).resolve())
    for page in PAGES:
        for variable in re.findall(r"KCACHEFS_[A-Z_]+", text_of(page)):
            assert variable in known


# --- what SECURITY.md lists -------------------------------------------------------------------------------------------


def test_the_page_about_security_has_every_policy() -> None:
    policies = [code.split() for code in column(SECURITY, "What each policy promises", 0)]
    assert {words[0] for words in policies} == set(POLICIES)
    assert {option for words in policies for option in words[1:]} <= options()["mount"]


def test_the_page_about_security_lists_what_the_code_does() -> None:
    page = prose(SECURITY)
    locks = [f"`{pattern.removeprefix('**/*')}`" for kind, pattern in layouts._LOCKS if kind is layouts.Kind.LOCK]
    assert f"names ending in {', '.join(locks[:-1])} or {locks[-1]}," in page
    assert f"in blocks of {accounts._BLOCK >> 10} KiB" in page
    machines = " and ".join(syscall_filter._MACHINES).replace("_", "-")
    assert f"The filter exists for {machines}." in page
    landlock = re.search(r"Linux [\d.]+", NO_LANDLOCK)
    assert landlock is not None
    assert f"Landlock version 2 ({landlock[0]})." in page
    secrets = set(re.findall(r"`([A-Z]+_)…`", page))
    assert secrets
    assert secrets <= set(worker_process._SECRETS)


# --- the map is complete ----------------------------------------------------------------------------------------------


def folders_in(top: Path) -> set[str]:
    """The folders in one that hold files of ours, however deep."""
    return {
        f"{path.relative_to(ROOT)}/"
        for path in top.iterdir()
        if path.is_dir()
        and not path.name.startswith((".git", ".venv", ".mypy", ".ruff", ".pytest", ".hypothesis", "__"))
        and any(inner.is_file() and "__pycache__" not in inner.parts for inner in path.rglob("*"))
    }


def all_folders_in(top: Path) -> set[str]:
    """The folders in those, too."""
    return {name for folder in folders_in(top) for name in (folder, *all_folders_in(ROOT / folder))}


def test_the_map_lists_every_folder() -> None:
    listed = column(ARCHITECTURE, "Folders", 0)
    assert len(listed) == len(set(listed))
    tracked = {f"{folder}/" for path in tracked_files() for folder in Path(path).parents}
    inside = folders_in(ROOT / "benchmarks") | folders_in(ROOT / "deploy")
    inside |= {name for name in folders_in(ROOT / "tests") if not (PACKAGE / Path(name).name).exists()}
    beside = (folders_in(ROOT) | inside) & tracked
    assert {name for name in listed if name.endswith("/")} == beside | all_folders_in(PACKAGE)


def test_the_map_lists_every_module_beside_the_folders() -> None:
    listed = {name for name in column(ARCHITECTURE, "Folders", 0) if name.endswith(".py")}
    assert listed == {str(path.relative_to(ROOT)) for path in PACKAGE.glob("*.py")}


def test_the_map_lists_every_file_of_the_core() -> None:
    listed = column(ARCHITECTURE, "Files of the core", 0)
    assert sorted(listed) == sorted(name_of(path) for path in (PACKAGE / "core").rglob("*.py"))


def tracked_files() -> Iterable[str]:
    """Files of the checkout, or of the source archive where there is no git."""
    if (ROOT / ".git").exists():
        import subprocess

        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        return listed.stdout.splitlines()
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]


# --- threads and locks ------------------------------------------------------------------------------------------------

KINDS = re.compile(
    r"threading\.(?:Lock|RLock|Event|Condition|Semaphore|BoundedSemaphore|Barrier|local)|queue\.\w*Queue"
    r"|(?:trio|asyncio)\.(?:Event|Lock|StrictFIFOLock|Condition|Semaphore|CapacityLimiter|Queue|open_memory_channel)"
    r"|(?:concurrent\.futures\.)?(?:Thread|Process)PoolExecutor|Pool"
)


def test_every_lock_is_on_the_page_with_its_kind() -> None:
    found = {
        place: kind.removeprefix("threading.").replace("ThreadPool", "concurrent.futures.ThreadPool", 1)
        for finder in finders()
        for place, kind in finder.made.items()
        if KINDS.fullmatch(kind)
    }
    assert found
    assert (
        dict(zip(column(CONCURRENCY, "Locks", 0), (row[1] for row in rows(CONCURRENCY, "Locks")), strict=True)) == found
    )


def test_every_lock_is_in_the_order_or_stands_apart() -> None:
    kinds = [row[1].rpartition(".")[2] for row in rows(CONCURRENCY, "Locks")]
    named = zip(column(CONCURRENCY, "Locks", 0), kinds, strict=True)
    locks = {short(name) for name, kind in named if kind in ("Lock", "RLock", "Condition")}
    pairs = column(CONCURRENCY, "Pairs", 0) + column(CONCURRENCY, "Pairs", 1)
    placed = [*column(CONCURRENCY, "Order", 1), *pairs, *column(CONCURRENCY, "Locks that stand apart", 1)]
    assert sorted(map(short, placed)) == sorted(locks)


def short(name: str) -> str:
    """A lock's name without the file that defines it."""
    return name.rpartition(": ")[2]


def test_no_lock_is_made_without_a_name() -> None:
    """One that is made in an expression would not be found by the test above."""
    calls = {call for finder in finders() for call in finder.called if KINDS.fullmatch(call)}
    made = {kind for finder in finders() for kind in finder.made.values()}
    assert calls <= made


def test_every_place_that_makes_a_thread_is_on_the_page() -> None:
    made = places_of(
        "threading.Thread",
        "ThreadPoolExecutor",
        "Pool",
        "trio.to_thread.run_sync",
        "asyncio.to_thread",
        "trio.run",
        "_thread.start_new_thread",
    )
    assert set(column(CONCURRENCY, "Threads", 1)) == made


def test_every_thread_that_has_a_name_is_on_the_page() -> None:
    named = set(re.findall(r'name(?:_prefix)?="(kcachefs-\w+)"', "\n".join(path.read_text() for path in sources())))
    assert {name for name in column(CONCURRENCY, "Threads", 0) if name.startswith("kcachefs-")} == named


def test_every_place_that_takes_a_file_lock_is_on_the_page() -> None:
    assert set(column(CONCURRENCY, "File locks", 0)) == places_of(
        "fcntl.flock", "fcntl.lockf", "open_locked", "filelock.open_locked", "filelock.lock"
    )


def test_every_module_that_prepares_for_forks_is_on_the_page() -> None:
    registering = {place.partition(":")[0] for place in places_of("os.register_at_fork")}
    assert set(column(CONCURRENCY, "Signals and forks", 0)) == registering


def test_every_program_that_is_started_for_a_process_of_ours_is_on_the_page() -> None:
    """Those that `own_python` starts, or that fork."""
    started = {place.partition(":")[0] for place in places_of("os.fork")}
    for path in sources():
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and dotted(node.func) == "own_python.command":
                module = node.args[0]
                if isinstance(module, ast.Constant):
                    started.add(f"{str(module.value).removeprefix('kcachefs.').replace('.', '/')}.py")
                else:  # its own name
                    started.add(name_of(path))
    assert {name for name in column(CONCURRENCY, "Processes", 0) if name.endswith(".py")} == started


def number_in(file: str, name: str) -> str:
    """The number that a file gives a name, as a page writes it; the largest, if it gives several."""
    found = re.findall(rf"^ *{name} = ([\d.]+)$", (PACKAGE / file).read_text(), flags=re.MULTILINE)
    assert found, f"{file} has no number {name}"
    return f"{max(map(float, found)):g}"


def test_the_numbers_of_threads_on_the_page_are_those_of_the_code() -> None:
    page = prose(CONCURRENCY)
    direct = (PACKAGE / "engines/direct.py").read_text()
    worker = (PACKAGE / "daemon/worker.py").read_text()
    slow = re.search(r"_SLOW_THREADS = min\((\d+), ", direct)
    interval = re.search(r"sys\.setswitchinterval\(([\d.]+)\)", worker)
    assert slow is not None
    assert interval is not None
    assert f"`kcachefs-slow`, up to {slow[1]} |" in page
    for said, file, name in (
        ("`kcachefs-wait`, up to {} |", "engines/direct.py", "_WAITING_THREADS"),
        ("`kcachefs-fetch`, up to {} |", "engines/direct.py", "_FETCHING_THREADS"),
        ("at a time, {} that wait for a fleet", "engines/pyfuse3.py", "_FETCHING_THREADS"),
        ("that wait for a fleet and {} that wait for room |", "engines/pyfuse3.py", "_WAITING_THREADS"),
        ("`kcachefs-pack`, up to {} in the agent |", "daemon/fleet_agent.py", "_FETCHES"),
        ("a writer of `kcachefs unpack`, up to {} |", "fleet/targets.py", "writers"),
        ("`kcachefs-records`, up to {} |", "fleet/asking.py", "IN_FLIGHT"),
        ("the worker, for {} seconds at a time;", "daemon/mount_metrics.py", "ANSWER_SECONDS"),
        ("the daemon, for {} seconds at a time |", "cli/evicting.py", "PATIENCE_SECONDS"),
    ):
        assert said.format(number_in(file, name)) in page
    assert f"switch interval to {float(interval[1]) * 1000:g} ms" in page
    assert f"pyfuse3's helpers, at most {trio.run(threads_of_trio)} at a time" in page
    numbers = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    chores = len(re.findall(r"chores\.(?:every|repeat)\(", worker))
    assert f"| up to {numbers[chores]} chores of a worker" in page
    assert f"carries it out, at most {AT_ONCE} at a time" in page
    assert f"connections to the control socket, up to {CONNECTIONS_MAX} at a time" in page


async def threads_of_trio() -> float:
    return trio.to_thread.current_default_thread_limiter().total_tokens


# --- what the page promises of the code -------------------------------------------------------------------------------


def test_where_bytes_are_is_said_without_a_call_in_between() -> None:
    """CPython may give another thread a turn at a call or a jump back: there is none after the first assignment."""
    for function in (unsealed.set_content, unsealed.refresh):
        names = [instruction.opname for instruction in dis.get_instructions(function)]
        after = names[next(at for at, name in enumerate(names) if name.startswith("STORE_ATTR")) :]
        assert "STORE_ATTR" in after[1:]
        assert [name for name in after if name.startswith(("CALL", "JUMP_BACKWARD", "FOR_ITER"))] == []


FOLDING = {"fold", "compact", "shares", "oldest"}
TELLING = {"name_gone", "_name_gone", "knows", "is_known"}


def test_nothing_folds_or_talks_to_the_kernel_while_it_holds_the_catalogs_lock() -> None:
    """As far as the lines inside such a block show."""
    wrong, blocks = [], 0
    for path in (*(PACKAGE / "core").rglob("*.py"), *(PACKAGE / "store").rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.With) and any(takes_the_lock(item.context_expr, path) for item in node.items):
                blocks += 1
                for call in (inner for part in node.body for inner in ast.walk(part) if isinstance(inner, ast.Call)):
                    if isinstance(call.func, ast.Attribute) and call.func.attr in FOLDING | TELLING:
                        wrong.append(f"{name_of(path)}:{call.lineno} calls {call.func.attr}")
    assert blocks > 30, EMPTY
    assert wrong == []


def takes_the_lock(expression: ast.expr, path: Path) -> bool:
    if isinstance(expression, ast.Call):
        return isinstance(expression.func, ast.Attribute) and expression.func.attr in ("change", "transaction")
    written = ast.unparse(expression)
    return written.endswith("catalog.lock") or (written == "self._lock" and "core" in path.parts)


class Watched:
    """A lock that notes which locks its thread held when it was taken."""

    def __init__(self, lock: Any, names: dict[int, str], order: set[tuple[str, str]], held: Any) -> None:
        self._lock = lock
        self._names = names
        self._order = order
        self._held = held

    def acquire(self, blocking: bool = True) -> bool:
        stack: list[Watched] = self._held.__dict__.setdefault("stack", [])
        if self not in stack:
            self._order |= {
                (self._names[id(other)], self._names[id(self)]) for other in stack if id(other) in self._names
            }
        if is_taken := self._lock.acquire(blocking):
            stack.append(self)
        return bool(is_taken)

    def release(self) -> None:
        stack = self._held.stack
        del stack[len(stack) - 1 - stack[::-1].index(self)]
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_locks_are_taken_in_the_order_that_the_page_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[int, str] = {}
    order: set[tuple[str, str]] = set()
    held = threading.local()
    watching = SimpleNamespace(
        **{name: getattr(threading, name) for name in ("Event", "Thread", "local")},
        Lock=lambda: Watched(threading.Lock(), names, order, held),
        RLock=lambda: Watched(threading.RLock(), names, order, held),
    )
    stores = ("catalog", "store", "ledger", "volumes", "slots", "spool", "frame_cache", "dictionaries", "listings")
    cores = ("history", "runs", "start_profiles", "accounts", "report_folder")
    for module in (*(f"store.{name}" for name in stores), *(f"core.{name}" for name in cores)):
        monkeypatch.setattr(f"kcachefs.{module}.threading", watching)
    with Store(tmp_path / "store", Options(background=False, volume_size=1 << 20)) as store:
        limits = Limits(max_size=3 << 20, max_size_per_uid=1 << 30, min_free=0, grace=0.0)
        fs = Filesystem(store, FsOptions(limits=limits))
        assert fs.quotas is not None
        in_store = (store.catalog, store.objects.ledger, store.volumes, store.slots, store.spool, store.objects.cache)
        in_core = (fs.history, fs.runs, fs.profiles, fs.quotas.accounts, fs.report)
        for owner in (*in_store, store.dictionaries, store.listings, *in_core):
            names |= {
                id(lock): f"{type(owner).__name__}.{name}"
                for name, lock in vars(owner).items()
                if isinstance(lock, Watched)
            }
        write_into_what_was_packed(fs)
        use(fs)
        fold_on_a_full_disk(fs, monkeypatch)
        fs.report.find(Caller(0, 0), b"settled.json")
    levels = {code: int(row[0]) for row in rows(CONCURRENCY, "Order") for code in re.findall(r"`([^`]+)`", row[1])}
    apart = set(names.values()) - set(levels)
    assert apart == {"ReportFolder._turn"}
    assert set(levels) < set(names.values())
    assert [pair for pair in order if apart & set(pair)] == []
    assert [(outer, inner) for outer, inner in sorted(order) if levels[inner] <= levels[outer]] == []
    assert {outer for outer, _ in order} >= {
        "Catalog.lock",
        "Catalog._fold_lock",
        "Ledger._roll_lock",
        "Volumes._sync_lock",
    }
    assert order >= {
        ("Catalog.lock", "Volumes._sync_lock"),
        ("Catalog.lock", "Accounts._lock"),
        ("Catalog.lock", "Dictionaries._lock"),
        ("Catalog.lock", "Runs._lock"),
        ("Runs._lock", "StartProfiles._lock"),
    }


def write_into_what_was_packed(fs: Filesystem) -> None:
    """A sealed file that was compressed with a dictionary is written again: it is decoded with the lock held."""
    root, parent = Caller(0, 0), fs.tree.find(ROOT_INO, b"triton")
    assert parent is not None
    texts = [alike(seed) for seed in range(8)]
    assert fs.store.dictionaries.learn([alike(seed) for seed in range(100, 130)], 1 << 20)
    inos = [fs.create(root, parent, b"%d" % number, 0o644)[0] for number in range(len(texts))]
    for ino, text in zip(inos, texts, strict=True):
        fs.files.write(ino, 0, text)
    fs.settle()
    for _ in fs.store.repack(0):
        pass
    fs.store.objects.cache.clear()
    fs.store.dictionaries._loaded.clear()
    fs.files.write(inos[0], 0, b"again")
    assert fs.read(inos[0], 0, 9000) == b"again" + texts[0][5:]


def alike(seed: int) -> bytes:
    """Text that has much in common with that of other seeds, and little within itself."""
    common, own = random.Random(0), random.Random(seed)
    lines = [common.randbytes(24).hex() for _ in range(200)]
    return "\n".join(own.sample(lines, 100)).encode()


def use(fs: Filesystem) -> None:
    """Requests in this thread for more than the limits allow, sealing and evicting in another."""
    root, parent = Caller(0, 0, os.getpid()), fs.tree.find(ROOT_INO, b"jax")
    assert parent is not None
    done = threading.Event()

    def tend() -> None:
        while not done.is_set():
            fs.sealer.seal_next(0)
            fs.evictor.turn(0.01)

    tending = threading.Thread(target=tend)
    tending.start()
    try:
        for number in range(24):
            ino, _ = fs.create(root, parent, b"%d" % number, 0o644)
            fs.files.write(ino, 0, os.urandom(3 << 20 if number % 8 == 0 else 200_000))
            fs.sync(ino)
            fs.rename(root, parent, b"%d" % number, parent, b"%d-cache" % number)
            assert len(fs.read(ino, 0, 4096)) == 4096
            fs.forget(ino, 1)
    finally:
        done.set()
        tending.join()
    fs.settle()
    fs.store.compact(1.0)


def fold_on_a_full_disk(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for another segment of the journal: what is pending is folded with the lock held."""

    def refuse() -> None:
        raise NoSpace("the disk is full")

    parent = fs.tree.find(ROOT_INO, b"jax")
    assert parent is not None
    fs.make(Caller(0, 0), parent, b"folder", 0o040755)
    with monkeypatch.context() as patch:
        patch.setattr(fs.store.catalog._journal, "rotate", refuse)
        fs.store.fold()
