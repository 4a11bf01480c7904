"""`kcachefs run`: the command notices only its variables, and the mount lasts as long as somebody uses it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs import config
from kcachefs.cli.printing import format_seconds
from kcachefs.daemon import registry
from tests import command_server
from tests.cli.scene import kill_and_wait
from tests.command_server import Process
from tests.engines.mounting import Mount
from tests.frameworks.commands import KCACHEFS, PATIENCE, kcachefs, mounted_under
from tests.frameworks.programs import TRITON
from tests.waiting import until

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def mount(surroundings: Path) -> Iterator[Mount]:
    """A mount that is already running; tests that need another one name their own store."""
    with Mount(surroundings / "there already", surroundings / "its store", "direct") as mount:
        yield mount


SHOW = "import json, os, sys; json.dump(dict(os.environ), sys.stdout)"


def test_a_command_gets_every_variable_and_the_mount_goes_with_it(base: Path) -> None:
    done = kcachefs("run", "--store", base / "store", "--", sys.executable, "-c", SHOW)
    seen = json.loads(done.stdout)
    assert seen["TRITON_CACHE_DIR"] == seen["KCACHEFS_MOUNT"] + "/triton"
    assert not os.path.ismount(seen["KCACHEFS_MOUNT"])
    again = json.loads(kcachefs("run", "--store", base / "store", "--", sys.executable, "-c", SHOW).stdout)
    assert again["KCACHEFS_MOUNT"] == seen["KCACHEFS_MOUNT"], "what is cached holds absolute paths"


def test_what_a_command_left_is_there_for_the_next(base: Path) -> None:
    kcachefs(
        "run",
        "--store",
        base / "store",
        "--",
        "sh",
        "-c",
        'mkdir "$TRITON_CACHE_DIR/K" && echo 1 > "$TRITON_CACHE_DIR/K/f"',
    )
    done = kcachefs("run", "--store", base / "store", "--", "sh", "-c", 'cat "$TRITON_CACHE_DIR/K/f"')
    assert done.stdout == "1\n"


def test_a_running_mount_is_used_and_stays(mount: Mount) -> None:
    choices: list[list[str | Path]] = [[], ["--mount", mount.mountpoint], ["--store", mount.store]]
    for choice in choices:
        done = kcachefs("run", *choice, "--", "sh", "-c", 'echo "$KCACHEFS_MOUNT"')
        assert done.stdout.strip() == str(mount.mountpoint)
        assert mount.answers()


def test_a_mount_can_be_made_where_it_is_wanted(base: Path) -> None:
    where = base / "a place" / "for it"
    done = kcachefs(
        "run", "--mount", where, "--store", base / "s", "--", "sh", "-c", 'df "$KCACHEFS_MOUNT" | tail -n 1'
    )
    assert str(where) in done.stdout
    assert not os.path.ismount(where)
    assert mounted_under(base) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--store", "{}/s", "--engine", "pyfuse"], ["pyfuse", "pyfuse3"]),
        (["--store", "{}/s", "--max-size", "0"], ["'0'", "20GiB"]),
        (["--store", "{}/m/s", "--mount", "{}/m"], ["{}/m", "inside each other"]),
        (["--store", "{}/s", "--mount", "{}/\udcff"], ["UTF-8"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_mount_that_makes_no_sense_is_one_line_and_touches_nothing(
    base: Path, arguments: list[str], words: list[str]
) -> None:
    done = kcachefs("run", *(one.format(base) for one in arguments), "--", "echo", "ran", check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    for word in words:
        assert word.format(base) in done.stderr
    assert os.listdir(base) == []


def test_the_kernel_is_not_asked_to_send_again_where_that_is_switched_off(base: Path) -> None:
    show = """
import os
from kcachefs.daemon import registry
state = registry.read(os.environ["KCACHEFS_MOUNT"])
print(open(f"/proc/{state.worker_pid}/cmdline").read())
"""
    command = ("run", "--store", base / "s", "--", sys.executable, "-c", show)
    assert '"resend":false' in kcachefs(*command, env={"KCACHEFS_RESEND": "0"}).stdout
    assert '"resend":true' in kcachefs(*command).stdout


def test_who_joins_a_mount_of_another_command_need_not_name_its_store(base: Path) -> None:
    """Not even if the default store could not be used with that mount."""
    inner = [*KCACHEFS, "run", "-q", "--", "sh", "-c", 'echo "$KCACHEFS_MOUNT"']
    place = base / "usual" / "mount"
    done = kcachefs(
        "run", "--store", base / "s", "--mount", place, "--", *inner, env={"KCACHEFS_STORE": str(base / "usual")}
    )
    assert done.stdout == f"{place}\n"


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_passes_through(mount: Mount, code: int) -> None:
    assert kcachefs("run", "--", "sh", "-c", f"exit {code}", check=False).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_a_command_that_dies_by_a_signal_is_seen_to(mount: Mount, number: signal.Signals) -> None:
    script = f"kill -{int(number)} $$"
    assert kcachefs("run", "--", "sh", "-c", script, check=False).returncode == -number


def test_a_command_that_cannot_be_started_has_the_shells_codes(mount: Mount, base: Path) -> None:
    done = kcachefs("run", "--", "no-such-command-at-all", check=False)
    assert done.returncode == 127
    assert "no-such-command-at-all" in done.stderr
    (base / "text").write_text("hello")
    assert kcachefs("run", "--", base / "text", check=False).returncode == 126
    assert kcachefs("run", check=False).returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_us_reaches_the_command_once(mount: Mount, number: signal.Signals) -> None:
    script = f"""
import signal, sys
got = []
signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}, signal.SIGUSR2])
print("ready", flush=True)
print(signal.sigwait([{int(number)}]).name, flush=True)
print(sorted(signal.sigpending()), flush=True)
sys.exit(3)
"""
    with Process("run", "--", sys.executable, "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == f"{number.name}\n[]\n"
        assert process.wait(PATIENCE) == 3


def test_ctrl_c_at_a_terminal_reaches_the_command_once(mount: Mount) -> None:
    """A terminal sends it to every foreground process: forwarding it too would interrupt the command twice."""
    script = (
        "import signal,sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK,[signal.SIGINT])\n"
        "print('ready',flush=True)\n"
        "signal.sigwait([signal.SIGINT])\n"
        "print('one',flush=True)\n"
        "print('two' if signal.sigtimedwait([signal.SIGINT], 1) else 'only',flush=True)\n"
    )
    controller, terminal = os.openpty()
    starter = (
        "import os,sys,fcntl,termios\n"
        "os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", starter, *KCACHEFS, "run", "-q", "--", sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(terminal)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.write(controller, b"\x03")
        assert process.stdout.read() == "one\nonly\n"
        assert process.wait(PATIENCE) == 0
    os.close(controller)


def test_the_command_has_our_streams_and_arguments(mount: Mount) -> None:
    done = subprocess.run(
        [*KCACHEFS, "run", "--", "sh", "-c", 'cat; printf "%s|" "$@" >&2', "sh", "--help", "-x", "", "a b"],
        input="from outside",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == "from outside"
    assert done.stderr.startswith("--help|-x||a b|")


def test_many_at_once_share_one_mount_and_the_last_takes_it_away(base: Path) -> None:
    script = 'printf "%s\\n" "$KCACHEFS_MOUNT"; read -r _; mkdir "$TRITON_CACHE_DIR/$1"'
    processes = [
        Process(
            *("run", "--store", base / "store", "--", "sh", "-c", script, "sh", str(number)),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(6)
    ]
    places = {process.stdout.readline().strip() for process in processes if process.stdout is not None}
    [place] = places
    for process in processes:
        assert os.path.ismount(place)
        process.communicate("go\n", timeout=PATIENCE)
        assert process.returncode == 0
    assert not os.path.ismount(place)
    done = kcachefs("run", "--store", base / "store", "--", "sh", "-c", 'ls "$TRITON_CACHE_DIR"')
    assert done.stdout.split() == [str(number) for number in range(6)]


def test_nothing_is_left_in_the_runtime_directory(base: Path) -> None:
    done = kcachefs("run", "--store", base / "s", "--", "sh", "-c", 'echo "$KCACHEFS_MOUNT"')
    record = registry.state_path(done.stdout.strip())
    until(lambda: not [*record.parent.glob(f"{record.stem}.*")], "its supervisor ends a moment later")


def test_a_run_inside_a_run_uses_its_mount(base: Path) -> None:
    inner = [*KCACHEFS, "run", "-q", "--", "sh", "-c", 'echo "$KCACHEFS_MOUNT"']
    done = kcachefs(
        "run",
        "--store",
        base / "s",
        "--",
        "sh",
        "-c",
        '"$@" && ls "$KCACHEFS_MOUNT/triton" && echo still',
        "sh",
        *inner,
    )
    place, still = done.stdout.split()
    assert still == "still"
    assert not os.path.ismount(place)


def test_a_run_that_is_killed_leaves_its_mount_to_the_next(base: Path) -> None:
    script = 'echo "$KCACHEFS_MOUNT $$"; exec sleep 1000'
    with Process("run", "--store", base / "s", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        place, command = process.stdout.readline().split()
        process.kill()
        process.wait(PATIENCE)
        os.kill(int(command), signal.SIGKILL)
    assert os.path.ismount(place)
    done = kcachefs("run", "--store", base / "s", "--", "sh", "-c", 'echo "$KCACHEFS_MOUNT"')
    assert done.stdout.strip() == place
    assert not os.path.ismount(place)


def test_the_locks_of_a_mount_in_use_never_look_like_leftovers(base: Path) -> None:
    """In /tmp, what is old is cleared away. Without them the next session would take the mount from this one."""
    script = 'echo "$KCACHEFS_MOUNT"; read -r _'
    with Process("run", "--store", base / "s", "--", "sh", "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        record = registry.state_path(process.stdout.readline().strip())
        files = [record.with_suffix(suffix) for suffix in (".users", ".turn", ".sock", ".json")]
        for file in files:
            os.utime(file, (0, 0))
        until(lambda: all(file.stat().st_mtime > 0 and file.stat().st_atime > 0 for file in files))
        process.communicate("go\n", timeout=PATIENCE)


def test_it_ends_with_one_line_and_asserts_that_nothing_was_compiled(base: Path) -> None:
    """With real Triton: four kernels, compiled once and then found."""
    (base / "program.py").write_text(TRITON)
    command = ["--store", str(base / "s"), "--", sys.executable, str(base / "program.py")]
    quiet = {"TRITON_DEFAULT_FP_FUSION": "1"}
    cold = kcachefs("run", "--assert-warm", *command, env=quiet, check=False)
    assert cold.returncode == 1
    first, second, *causes = cold.stderr.splitlines()
    assert first.startswith("kcachefs: 0 hits, 4 misses (0.0 % hits), 0 B served, ")
    assert second == "kcachefs: not warm: 4 entries had to be compiled"
    assert len(causes) == 1
    assert re.match(r"kcachefs:   4 kernels  new: no kernel of that name was here before", causes[0])
    warm = kcachefs("run", "--assert-warm", *command, env=quiet)
    total = json.loads(kcachefs("stats", "--store", base / "s", "--json").stdout)["total"]
    assert total["bytes_served"] == total["plain_bytes"] > 0
    served = config.format_size(total["plain_bytes"])
    assert warm.stderr.startswith(f"kcachefs: 4 hits, 0 misses (100.0 % hits), {served} served, ")
    assert len(warm.stderr.splitlines()) == 1
    compiled = json.loads(kcachefs("runs", "--store", base / "s", "--json").stdout)[0]["seconds_compiled"]
    assert warm.stderr.endswith(f", {format_seconds(compiled)} of compiling not repeated\n")
    assert " not repeated" not in first
    read = ["--store", str(base / "s"), "--", "sh", "-c", 'cat "$TRITON_CACHE_DIR"/*/*.json']
    summary = json.loads(kcachefs("run", "--json", *read).stderr.splitlines()[-1])
    assert summary["seconds_saved"] == pytest.approx(compiled)
    assert (summary["hits"], summary["unknown_saved"]) == (4, 0)
    assert kcachefs("run", "-q", *read).stderr == ""
    failed = kcachefs("run", "--assert-warm", "--store", base / "s", "--", "sh", "-c", "exit 9", check=False)
    assert failed.returncode == 9


def test_a_start_that_only_notes_when_it_read_an_entry_is_warm(mount: Mount) -> None:
    """As JAX does with a cache that was filled before its size was limited."""
    run = ("run", "--assert-warm", "--bytecode", "off", "--mount", mount.mountpoint, "--", "sh", "-c")
    cold = kcachefs(*run, 'echo code > "$KCACHEFS_MOUNT"/jax/jit_f-1f2e-cache', check=False)
    assert cold.stderr.startswith("kcachefs: 0 hits, 1 miss ")
    note = 'cd "$KCACHEFS_MOUNT"/jax && cat jit_f-1f2e-cache && echo now > jit_f-1f2e-atime'
    assert kcachefs(*run, note).stderr.startswith("kcachefs: 1 hit, 0 misses ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_cold_start_on_a_mount_of_root_is_not_called_warm(mount: Mount) -> None:
    folder = mount.mountpoint / "triton"
    folder.chmod(0o1777)
    script = (
        "import os, sys; from pathlib import Path; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from kcachefs.session import account\n"
        "mount = Path(sys.argv[1])\n"
        "before = account.read(mount)\n"
        "entry = mount / 'triton' / 'COLD'; entry.mkdir(); (entry / 'add.cubin').write_bytes(b'kernel' * 99)\n"
        "print((account.read(mount) - before).misses)\n"
    )
    # The imports come first: the user may not read this Python's packages.
    script = "import kcachefs.session.account, json, encodings.idna\n" + script
    environment = {**os.environ, "KCACHEFS_RUNTIME_DIR": f"/tmp/kcachefs-test-{os.getpid()}"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(mount.mountpoint)], capture_output=True, text=True, env=environment
    )
    shutil.rmtree(environment["KCACHEFS_RUNTIME_DIR"], ignore_errors=True)
    assert done.stdout == "1\n", done.stderr


def test_nothing_counted_is_not_warm(mount: Mount) -> None:
    done = kcachefs("run", "--assert-warm", "--mount", mount.mountpoint, "--", "true", check=False)
    assert done.returncode == 1
    assert "nothing was counted; the command used no entry\n" in done.stderr


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 3", 3), ("kill -TERM $$", -signal.SIGTERM)])
def test_how_the_command_ended_is_told_where_no_word_can_be_written(mount: Mount, script: str, code: int) -> None:
    for options in ((), ("--json",)):
        with open("/dev/full", "w") as full:
            command = ("run", *options, "--mount", mount.mountpoint, "--", "sh", "-c", script)
            process = Process(*command, stdout=None, stderr=full.fileno())
            assert process.wait(PATIENCE) == code


def test_a_command_whose_path_is_not_utf_8_runs(mount: Mount, base: Path) -> None:
    script = os.fsencode(base) + b"/caf\xe9.py"
    with open(script, "w") as file:
        file.write("print('ran')")
    done = subprocess.run(
        [*KCACHEFS, "run", "-q", "--mount", str(mount.mountpoint), "--", sys.executable, script],
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ran\n", b"")


def test_a_script_without_a_first_line_is_the_shells(mount: Mount, base: Path) -> None:
    script = base / "script"
    script.write_text('echo "$1"; exit 4\n')
    script.chmod(0o755)
    done = kcachefs("run", "-q", "--mount", mount.mountpoint, "--", script, "word", check=False)
    assert (done.returncode, done.stdout) == (4, "word\n")


def test_a_dead_mount_is_made_anew_with_its_own_store(base: Path) -> None:
    place, store = base / "mount", base / "store"
    kcachefs("mount", place, "--store", store)
    (place / "triton" / "KEY").mkdir()
    [state] = [one for one in json.loads(kcachefs("status", "--json").stdout)["mounts"] if one["store"] == str(store)]
    for pid in (state["supervisor_pid"], state["worker_pid"]):
        kill_and_wait(pid)
    try:
        without = {name: value for name, value in os.environ.items() if name != "KCACHEFS_STORE"}
        command = ("run", "-q", "--mount", place, "--", "sh", "-c", 'ls "$TRITON_CACHE_DIR"')
        done = command_server.run(*command, env=without)
        assert (done.returncode, done.stdout) == (0, "KEY\n")
        assert not os.path.ismount(place)
    finally:
        subprocess.run(["umount", "-l", place], check=False, stderr=subprocess.DEVNULL)


def test_nothing_to_pack_is_told_beside_what_the_command_did(mount: Mount, base: Path) -> None:
    pack = base / "used.kcp"
    done = kcachefs("run", "--mount", mount.mountpoint, "--pack", pack, "--", "true", check=False)
    assert done.returncode == 2
    assert "not packed: there is nothing to pack" in done.stderr
    assert " served, " in done.stderr
    assert not pack.exists()
    done = kcachefs("run", "--json", "--mount", mount.mountpoint, "--pack", pack, "--", "true", check=False)
    assert (done.returncode, json.loads(done.stderr.splitlines()[-1])["exit_code"]) == (2, 2)
    ran = base / "ran"
    done = kcachefs("run", "--mount", mount.mountpoint, "--pack", base, "--", "touch", ran, check=False)
    assert (done.returncode, ran.exists()) == (2, False)


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_a_line_of_json_comes_also_if_there_is_nothing_to_run(mount: Mount, command: str, code: int) -> None:
    done = kcachefs("run", "--json", "--mount", mount.mountpoint, "--", command, check=False)
    told = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, told["exit_code"], told["warm"]) == (code, code, None)


def test_a_line_of_json_comes_also_if_the_mount_ended_meanwhile(base: Path) -> None:
    place = base / "mount"
    kcachefs("mount", place, "--store", base / "store")
    script = f"{' '.join(KCACHEFS)} umount {place}; exit 3"
    done = kcachefs("run", "--json", "--mount", place, "--", "sh", "-c", script, check=False)
    assert (done.returncode, json.loads(done.stderr)) == (3, {"mountpoint": str(place), "warm": None, "exit_code": 3})
