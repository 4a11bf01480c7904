"""Python's bytecode in a mount: found by the next process, shared by many, and never in anybody's way."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.engines import mounting
from kcachefs.frameworks import bytecode, interpreters, source_times
from kcachefs.session import account
from tests import command_server, forked_daemons
from tests.engines.mounting import Mount, temporary_folder
from tests.frameworks.commands import kcachefs
from tests.frameworks.environments import IMPORTS, Environment, compiled, entries, half_imported, plain, variables
from tests.waiting import PATIENCE

pytestmark = pytest.mark.mount
NOBODY = 65534
HERE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    """An environment that tests only read."""
    with temporary_folder() as folder:
        yield Environment(folder / "venv")


@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="the distribution has no Python")
def test_the_packages_of_an_environment_that_also_sees_the_systems_are_found(base: Path) -> None:
    """Debian's Python leaves them out when it is asked without `site`."""
    subprocess.run(
        ["/usr/bin/python3", "-m", "venv", "--without-pip", "--system-site-packages", base / "v"], check=True
    )
    [site] = (base / "v" / "lib").glob("python*/site-packages")
    (site / "mine-1.0.dist-info").mkdir()
    asked = interpreters.of_command([str(base / "v" / "bin" / "python")], dict(os.environ))
    assert asked is not None
    assert str(site) in asked.sites
    assert ("mine", "1.0") in {(one.name, one.version) for one in interpreters.installed(asked)}


# --- the way of a module ----------------------------------------------------------------------------------------------


def test_the_next_process_compiles_nothing(mount: Mount, environment: Environment) -> None:
    values = variables(mount, environment)
    assert values[bytecode.DONT_WRITE] == ""
    first = environment.run(IMPORTS, "-v", env=values)
    assert len(compiled(first)) > 50
    second = environment.run(IMPORTS, "-v", env=values)
    assert compiled(second) == []
    assert not list(environment.site.rglob("__pycache__"))


def test_an_entry_is_a_package_and_is_called_by_its_version(mount: Mount, environment: Environment) -> None:
    environment.run(env=variables(mount, environment))
    names = set(entries(mount).values())
    version = f"python {sys.version_info.major}.{sys.version_info.minor}"
    [rich] = environment.site.glob("rich-*.dist-info")
    assert f"{rich.name.removesuffix('.dist-info').replace('-', ' ')}, {version}" in names
    assert f"standard library, {version}" in names
    assert len(names) < 40


def test_levels_of_optimization_are_kept_apart(mount: Mount, environment: Environment) -> None:
    values = variables(mount, environment)
    for option in ("-O", "-OO", "-B"):
        environment.run(IMPORTS, option, env=values)
    assert compiled(environment.run(IMPORTS, "-v", "-O", env=values)) == []
    assert compiled(environment.run(IMPORTS, "-v", "-OO", env=values)) == []
    assert len(compiled(environment.run(IMPORTS, "-v", env=values))) > 50


def test_many_at_once_on_an_empty_mount_say_nothing(mount: Mount, environment: Environment) -> None:
    values = {**plain(), **variables(mount, environment)}
    command = [str(environment.python), "-W", "error", "-c", IMPORTS]
    processes = [
        subprocess.Popen(command, env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(8)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert said == [b""] * 8
    assert compiled(environment.run(IMPORTS, "-v", env=values)) == []


def test_two_environments_at_the_same_path_do_not_overwrite_each_other(mount: Mount, base: Path) -> None:
    """Two images: the same folder holds the one or the other, installed at different times."""
    shown = base / "venv"
    images = []
    for number in (1, 2):
        image = Environment(base / f"image {number}")
        image.set_times(1_700_000_000 + number)
        images.append(image)
    seen = []
    for _ in range(2):
        for image in images:
            with image.shown_at(shown) as there:
                seen.append(len(compiled(there.run(IMPORTS, "-v", env=variables(mount, there)))))
    assert min(seen[:2]) > 50
    assert seen[2:] == [0, 0]


@pytest.mark.parametrize("moment", [0, 1_700_000_000])
def test_an_image_whose_files_have_one_time_does_not_run_another_images_code(
    mount: Mount, base: Path, environment: Environment, moment: int
) -> None:
    """kaniko --reproducible, BuildKit's rewrite-timestamp and Bazel give files such times; edits of the same size."""
    shown, said, reason = base / "venv", [], ""
    for number in (1, 2):
        image = environment.copied_to(base / f"image {number}")
        (image.site / "project.py").write_text(f"RATE = {number}\n")
        image.set_times(moment, step=0)
        image.with_library(base / f"library {number}", moment)
        with image.shown_at(shown) as there:
            reason = judged(there).reason
            said.append(there.run("import project; print(project.RATE)", env=variables(mount, there)).stdout)
    assert said == ["1\n", "2\n"]
    seen = {0: ("1970-01-01 00:00:00", ".dist-info"), 1_700_000_000: ("2023-11-14 22:13:20", "rich", "os.py")}
    assert all(part in reason for part in seen[moment]), reason


def test_a_project_whose_files_have_no_true_time_is_not_kept_in_the_mount(
    base: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer of its own, over packages with times of their own."""
    project = base / "project"
    (project / "package").mkdir(parents=True)
    (project / "package" / "__init__.py").touch()
    (project / "train.py").touch()
    os.utime(project / "package", (0, 0))  # tells nothing: Python does not look at it
    script = str(project / "train.py")
    assert judged(environment, script).is_used
    assert judged(environment, "-m", "package", PYTHONPATH=str(project)).is_used
    for moment in (946_684_800, 315_532_800, 1, 0):
        os.utime(project / "package" / "__init__.py", (moment, moment))
        assert str(project / "package" / "__init__.py") in judged(environment, script).reason
    assert not judged(environment, "-m", "package", PYTHONPATH=str(project)).is_used
    assert judged(environment, script, wish="on").is_used
    monkeypatch.chdir(project)
    assert not judged(environment, "-m", "package").is_used


def test_packages_that_were_installed_in_few_seconds_are_kept(base: Path, environment: Environment) -> None:
    """Layers of images keep whole seconds, and all sources of a wheel have the time at which it was unpacked."""
    quick = environment.copied_to(base / "venv")
    for step in (1, 0):
        quick.set_times(1_700_000_000, step=step)
        assert judged(quick).is_used
    assert judged(quick, PYTHONPATH=str(quick.site)).is_used, "no project, but the packages themselves"
    (base / "train.py").touch()
    assert judged(quick, str(base / "train.py")).is_used
    os.utime(base / "train.py", (1_700_000_000, 1_700_000_000))
    assert str(base / "train.py") in judged(quick, str(base / "train.py")).reason


def test_a_dead_mount_in_a_project_keeps_nobody_waiting(base: Path, environment: Environment) -> None:
    project = base / "project"
    (project / "data").mkdir(parents=True)
    (project / "link.py").symlink_to(project / "data" / "train.py")
    unanswered = mounting.mount(project / "data", base)
    try:
        thread = threading.Thread(target=judged, args=(environment, str(project / "train.py")), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    finally:
        os.close(unanswered)
        mounting.unmount(project / "data", lazy=True)


@pytest.mark.parametrize("python", [sys.executable, "/usr/bin/python3"])
def test_the_times_of_real_installations_tell_versions_apart(python: str) -> None:
    interpreter = interpreters.ask(python, plain())
    if interpreter is None:
        pytest.skip(f"{python} is not there")
    found = interpreters.installed(interpreter)
    library = interpreters.module_of_library(interpreter)
    assert library is not None
    assert source_times.sameness(found, bytecode.sample(found), [], library) == ""


def test_an_eviction_in_the_middle_of_an_import_harms_nobody(mount: Mount, environment: Environment) -> None:
    values = {**plain(), **variables(mount, environment)}
    environment.run(env=values)
    with half_imported(environment, values):
        assert entries(mount)
        kcachefs("evict", "--mount", mount.mountpoint, "python/*")
        assert not entries(mount)
    environment.run(env=values)
    assert compiled(environment.run(IMPORTS, "-v", env=values)) == []


def test_evictions_all_the_time_harm_nobody(mount: Mount, environment: Environment) -> None:
    values = {**plain(), **variables(mount, environment)}
    done = threading.Event()

    def evict() -> None:
        while not done.is_set():
            account.read(mount.mountpoint)
            kcachefs("evict", "--mount", mount.mountpoint, "python/*", check=False)

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        for _ in range(8):
            finished = environment.run(IMPORTS, "-W", "error", env=values)
            assert finished.stderr == ""
    finally:
        done.set()
        thread.join()


# --- mounts that are of no use ----------------------------------------------------------------------------------------


def test_a_mount_that_goes_away_in_the_middle_is_not_missed(mount: Mount, environment: Environment) -> None:
    values = {**plain(), **variables(mount, environment)}
    environment.run(env=values)
    with half_imported(environment, values):
        mount.sigkill()
    mount.start()


def test_a_read_only_mount_serves_what_it_has(base: Path, environment: Environment) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        environment.run("import rich", env=variables(mount, environment))
    with Mount(base / "mount", base / "store", "direct", "--read-only") as mount:
        values = variables(mount, environment)
        assert bytecode.PREFIX in values
        assert compiled(environment.run("import rich", "-v", env=values)) == []
        more = environment.run(IMPORTS, "-W", "error", env=values)
        assert more.stderr == ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_mount_that_is_closed_to_a_user_is_not_in_their_way(base: Path, environment: Environment) -> None:
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if python is None:
        pytest.skip("no Python that every user can run")
    with Mount(base / "mount", base / "store", "direct", "--no-allow-other") as mount:
        values = variables(mount, environment)
        command = [python, "-W", "error", "-c", "import email.message, json, logging; print('whole')"]
        done = subprocess.run(
            command,
            env={**plain(), **values},
            user=NOBODY,
            group=NOBODY,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user_is_not_trusted(mount: Mount, environment: Environment) -> None:
    told = judged(environment)
    theirs = mount.mountpoint / "python" / told.environment
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    mine = bytecode.variables(mount.mountpoint, told)[bytecode.PREFIX]
    assert mine == f"{theirs}-{os.getuid()}"
    environment.run(env={bytecode.PREFIX: mine})
    assert f"standard library, python {sys.version_info.major}.{sys.version_info.minor}" in entries(mount).values()
    os.chown(mine, NOBODY, NOBODY)
    assert bytecode.variables(mount.mountpoint, told) == {}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("umask", "mode"), [("022", 0o755), ("002", 0o700), ("000", 0o700)])
def test_a_folder_that_others_may_write_to_is_neither_made_nor_trusted(
    mount: Mount, environment: Environment, umask: str, mode: int
) -> None:
    told = judged(environment)
    before = os.umask(int(umask, 8))
    try:
        made = Path(bytecode.variables(mount.mountpoint, told)[bytecode.PREFIX])
        assert stat.S_IMODE(made.stat().st_mode) == mode
        made.chmod(0o777)
        assert bytecode.variables(mount.mountpoint, told)[bytecode.PREFIX] == f"{made}-{os.getuid()}"
    finally:
        os.umask(before)


def test_what_cannot_be_looked_at_is_left_out(base: Path, environment: Environment) -> None:
    """A link to nowhere, and a folder that is gone or closed by the time it is listed."""
    (base / "elsewhere").mkdir()
    (base / "elsewhere" / "gone-1.0.dist-info").symlink_to(base / "nowhere")
    found = interpreters.of_command([str(environment.python)], {"PYTHONPATH": str(base / "elsewhere")})
    assert found is not None
    assert str(base / "elsewhere") in found.sites
    names = [one.name for one in interpreters.installed(found)]
    assert names
    assert "gone" not in names
    (base / "elsewhere" / "gone-1.0.dist-info").unlink()
    (base / "elsewhere").rmdir()
    assert [one.name for one in interpreters.installed(found)] == names


# --- kinds of packages ------------------------------------------------------------------------------------------------


def test_every_kind_of_package_is_imported_and_found_again(mount: Mount, base: Path) -> None:
    environment = Environment(base / "venv")
    site, project = environment.site, base / "project"
    for part in ("first", "second"):  # two distributions that share a package without __init__.py
        (site / "shared" / part).mkdir(parents=True)
        (site / "shared" / part / "__init__.py").write_text(f"name = {part!r}")
    with zipfile.ZipFile(site / "zipped-1.0-py3.egg", "w") as egg:
        egg.writestr("zipped/__init__.py", "name = 'zipped'")
    (project / "src" / "edited").mkdir(parents=True)
    (project / "src" / "edited" / "__init__.py").write_text("name = 'edited'")
    (site / "edited-1.0.dist-info").mkdir()
    (site / "edited.pth").write_text(f"{project / 'src'}\n{site / 'zipped-1.0-py3.egg'}\n")
    (site / "single.py").write_text("name = 'single'")
    values = variables(mount, environment)
    code = "import shared.first, shared.second, zipped, edited, single; print(edited.name, zipped.name, single.name)"
    assert environment.run(code, env=values).stdout == "edited zipped single\n"
    second = environment.run(code, "-v", env=values)
    assert [line for line in compiled(second) if ".egg" not in line] == []
    found = {path.rpartition("site-packages/")[2] for path in entries(mount)}
    assert {"shared", "single"} <= found
    assert any(path.endswith("/project/src/edited/" + str(sys.implementation.cache_tag)) for path in found)
    (project / "src" / "edited" / "__init__.py").write_text("name = 'edited again'")
    assert environment.run(code, env=values).stdout == "edited again zipped single\n"


# --- where it helps ---------------------------------------------------------------------------------------------------


def judged(environment: Environment, *options: str, wish: str = "auto", **variables: str) -> bytecode.Judgement:
    return bytecode.judge_command([str(environment.python), *options], {**plain(), **variables}, wish)


def test_good_bytecode_beside_the_sources_is_left_in_use(mount: Mount, base: Path) -> None:
    environment = Environment(base / "venv")
    assert judged(environment).is_used
    environment.compile()
    for told in (judged(environment), judged(environment, PYTHONDONTWRITEBYTECODE="1")):
        assert not told.is_used
        assert "rich" in told.reason
    assert variables(mount, environment) == {}
    show = "import os; print(os.environ.get('PYTHONPYCACHEPREFIX'), os.environ.get('PYTHONDONTWRITEBYTECODE'))"
    command = ["run", "--mount", str(mount.mountpoint), "--", str(environment.python), "-c", show]
    assert kcachefs(*command, env={"PYTHONDONTWRITEBYTECODE": "1"}).stdout == "None 1\n"
    os.utime(environment.site / "pygments" / "__init__.py", (5, 5))
    for name in ("rich", "markdown_it"):
        os.utime(environment.site / name / "__init__.py", (5, 5))
    stale = judged(environment, PYTHONDONTWRITEBYTECODE="1")
    assert stale.is_used
    assert "PYTHONDONTWRITEBYTECODE is set" in stale.reason


def test_bytecode_that_python_writes_by_itself_is_left_to_it(base: Path) -> None:
    """After a first start only what it imported has any; a second one finds that, so a mount would gain nothing."""
    environment = Environment(base / "venv")
    environment.run()
    assert not judged(environment).is_used


def test_hash_based_bytecode_is_usable_whatever_the_time_of_the_source_is(base: Path) -> None:
    environment = Environment(base / "venv")
    mode = "py_compile.PycInvalidationMode.CHECKED_HASH"
    site = str(environment.site)
    environment.run(
        f"import compileall, py_compile; compileall.compile_dir({site!r}, quiet=2, invalidation_mode={mode})"
    )
    for path in environment.site.rglob("*.py"):
        os.utime(path, (5, 5))
    assert not judged(environment).is_used


def test_a_wish_is_followed(environment: Environment) -> None:
    assert judged(environment, wish="on").is_used
    assert not judged(environment, wish="off").is_used
    assert not judged(environment, "-I", "-c", "pass").is_used
    assert judged(environment, "-c", "-I").is_used
    kept = judged(environment, PYTHONPYCACHEPREFIX="/elsewhere")
    assert not kept.is_used
    assert "/elsewhere" in kept.reason


def test_the_python_of_a_script_is_found(base: Path, environment: Environment) -> None:
    direct, through_env, long = base / "direct", base / "env", base / "long"
    direct.write_text(f"#!{environment.python}\n")
    through_env.write_text("#!/usr/bin/env python\n")
    long.write_text(f"#!/bin/sh\n'''exec' \"{environment.python}\" \"$0\" \"$@\"\n' '''\n")
    path = f"{environment.folder / 'bin'}:{os.environ['PATH']}"
    for script in (direct, through_env, long):
        script.chmod(0o755)
        found = interpreters.of_command([str(script)], {**plain(), "PATH": path})
        assert found is not None
        assert found.prefix == str(environment.folder)


def test_what_is_read_from_a_file_agrees_with_what_python_says(environment: Environment) -> None:
    told = interpreters._told_by(str(environment.python), plain())
    read = interpreters._of_virtual_environment(str(environment.python))
    assert told is not None
    assert read is not None
    assert (read[:3], interpreters._existing(read[3])) == (told[:3], interpreters._existing(told[3]))


def test_what_the_places_of_an_installation_say_agrees_with_what_python_says() -> None:
    own = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    known = 0
    for executable in (own, "/usr/bin/python3"):
        environ = {**plain(), "PYTHONUSERBASE": "/var/tmp"}
        found, told = (one(executable, environ) for one in (interpreters._of_plain_installation, interpreters._told_by))
        if found is None or told is None:
            continue  # installed in another way, and so asked
        assert found[:3] == told[:3]
        assert set(interpreters._existing(found[3])) == set(interpreters._existing(told[3]))
        known += 1
    assert known or not os.path.exists(own)


def test_a_script_by_the_name_of_a_python_is_asked(base: Path) -> None:
    """As version managers have: which Python it starts depends on more than its place."""
    (base / "bin").mkdir()
    (base / "lib" / "python3.11").mkdir(parents=True)
    (base / "lib" / "python3.11" / "os.py").touch()
    shim = base / "bin" / "python3.11"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    found = interpreters.ask(str(shim), plain())
    assert found is not None
    assert found.prefix == sys.prefix


def test_an_installation_makes_another_environment(base: Path) -> None:
    environment = Environment(base / "venv")
    before = judged(environment).environment
    assert judged(environment).environment == before
    (environment.site / "rich" / "__pycache__").mkdir()
    assert judged(environment).environment == before, "nothing was installed"
    shutil.copytree(HERE / "kcachefs" / "session", environment.site / "more-1.0.dist-info")
    assert judged(environment).environment != before


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def names_asked_for_each_time() -> Iterator[None]:
    """Else the kernel knows a name from the process before for a second, and asks nobody. It comes before the mount."""
    with forked_daemons.constants({"kcachefs.core.name_requests.HEARTBEAT_SECONDS": 0}):
        yield


@pytest.mark.usefixtures("names_asked_for_each_time")
def test_run_lifts_what_forbids_writing_and_says_what_it_found(mount: Mount, environment: Environment) -> None:
    command = ["run", "--mount", str(mount.mountpoint), "--", str(environment.python), "-c", IMPORTS]
    told: list[str] = []
    for _ in range(2):
        done = kcachefs(*command, env={"PYTHONDONTWRITEBYTECODE": "1"})
        told.append(done.stderr.splitlines()[-1] if "bytecode" in done.stderr.splitlines()[-1] else done.stderr)
    assert "compiled" in told[0]
    assert "bytecode of" in told[1]
    assert "compiled" not in told[1]
    off = [*command[: command.index("--")], "--bytecode", "off", "--", str(environment.python), "-c"]
    show = "import sys; print(sys.pycache_prefix, sys.dont_write_bytecode)"
    assert kcachefs(*off, show, env={"PYTHONDONTWRITEBYTECODE": "1"}).stdout == "None True\n"


def test_a_wrong_wish_is_one_line(mount: Mount) -> None:
    for command in (["run", "--bytecode", "perhaps", "--", "true"], ["env", "--bytecode", "perhaps"]):
        done = kcachefs(*command, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "perhaps" in done.stderr


def test_a_mount_and_a_file_can_switch_it_off(base: Path, environment: Environment) -> None:
    with Mount(base / "mount", base / "store", "direct", "--bytecode", "off") as mount:
        assert variables(mount, environment) == {}
        told = kcachefs(
            "env", "--mount", mount.mountpoint, "--python", environment.python, "--bytecode", "on", "--json"
        ).stdout
        assert bytecode.PREFIX in json.loads(told)


def test_init_moves_what_is_imported_after_it(mount: Mount, environment: Environment) -> None:
    code = (
        f"import sys; sys.path.append({str(HERE)!r}); sys.path.append({str(next(iter(map(str, _ours()))))!r})\n"
        f"import kcachefs; kcachefs.init({str(mount.mountpoint)!r})\n"
        f"before = set(sys.modules)\n{IMPORTS}\n"
        "print(sys.pycache_prefix, sys.dont_write_bytecode, len(set(sys.modules) - before))"
    )
    done = environment.run(code, env={"PYTHONDONTWRITEBYTECODE": "1"})
    prefix, dont_write, imported = done.stdout.split()
    assert prefix.startswith(f"{mount.mountpoint}/python/cpython-")
    assert (dont_write, int(imported) > 20) == ("False", True)
    assert any("/rich" in path for path in entries(mount))


def _ours() -> list[Path]:
    """Where the packages are that kcachefs itself needs."""
    import msgspec

    return [Path(msgspec.__file__).parents[1]]


def test_doctor_says_which_and_why(environment: Environment, base: Path) -> None:
    def told(path: str, **more: str) -> str:
        done = command_server.run("doctor", "--json", env={**plain(), "PATH": path, **more})
        [found] = [one for one in json.loads(done.stdout)["findings"] if one["subject"] == "Python's bytecode"]
        return str(found["message"])

    assert "no usable bytecode beside the sources of" in told(f"{environment.folder / 'bin'}:{os.environ['PATH']}")
    good = Environment(base / "venv")
    good.set_times(0, step=0)
    assert "1970-01-01 00:00:00" in told(f"{good.folder / 'bin'}:{os.environ['PATH']}")
    good.compile()
    assert "left to Python: usable" in told(f"{good.folder / 'bin'}:{os.environ['PATH']}")
