"""docs/protocols.md says what the code does: its tables against the constants, and against a real mount."""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from kcachefs.daemon import (
    control,
    crash_loop,
    fleet_agent,
    fleet_process,
    registry,
    supervisor,
    worker,
    worker_protocol,
)
from kcachefs.daemon.commands import Commands
from kcachefs.engines.notifier import MESSAGE_MAX
from kcachefs.errors import DaemonError
from kcachefs.fleet import agent_protocol, client, deliveries
from tests.engines.callers import OTHER, in_child
from tests.engines.mounting import Mount, temporary_folder
from tests.waiting import until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocols.md").read_text()

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as somebody else")


def section(heading: str) -> str:
    """What stands under a heading, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no heading {heading!r}"
    return found[1]


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without backticks."""
    rows = [line.strip("|").split("|") for line in section(heading).splitlines() if line.startswith("|")]
    assert len(rows) > 2, f"there is no table under {heading!r}"
    return [[cell.strip().replace("`", "") for cell in row] for row in rows[2:]]


def first_column(heading: str) -> list[str]:
    return [row[0] for row in table(heading)]


@pytest.fixture(scope="module")
def mount() -> Iterator[Mount]:
    """One with an entry that was written, sealed and used."""
    with temporary_folder() as base, Mount(base / "mount", base / "store", "direct") as made:
        (made.mountpoint / "triton" / "KEY").mkdir()
        (made.mountpoint / "triton" / "KEY" / "kernel.cubin").write_bytes(b"cubin")
        ask(made, "stats", settle=True)
        yield made


def ask(mount: Mount, verb: str, **arguments: Any) -> Any:
    return json.loads(control.ask(registry.socket_path(str(mount.mountpoint)), verb, arguments))


def kind_of(value: object) -> str:
    kinds = {
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
        dict: "object",
        list: "array",
        type(None): "null",
    }
    return kinds[type(value)]


def check_fields(heading: str, value: dict[str, Any]) -> None:
    told = {row[0]: row[1] for row in table(heading)}
    assert list(told) == list(value)
    for name, one in value.items():
        assert kind_of(one) in told[name].split(" or "), name


# --- supervisor and worker --------------------------------------------------------------------------------------------


def test_the_exit_codes_and_times_are_those_of_the_code() -> None:
    for code, name, _ in table("Exit codes"):
        assert getattr(worker_protocol, name) == int(code), name
    for name, seconds, _ in table("Times"):
        where = worker_protocol if hasattr(worker_protocol, name) else supervisor
        assert getattr(where, name) == float(seconds), name
    defined = {name for module in (worker_protocol, supervisor) for name in vars(module) if name.endswith("_SECONDS")}
    assert defined == set(first_column("Times"))
    assert f"After {crash_loop.CRASHES_MAX} workers in a row" in section("Failover")
    assert f"{crash_loop.CLOSES_MAX} in a row died (`CLOSES_MAX`)" in section("Failover")
    assert f"{crash_loop.NEXT_STANDBY_SECONDS:g} s (`NEXT_STANDBY_SECONDS`)" in section("Failover")
    assert f"{crash_loop.NEXT_STANDBY_SECONDS_MAX:g} s at most." in section("Failover")
    assert f"at most {MESSAGE_MAX} bytes" in section("Notification relay")
    assert f"{registry.MountConfig(mountpoint='/m', store='/s').hang_seconds:g} seconds unless set" in section("Times")


def test_the_messages_are_those_of_the_code() -> None:
    words = {message.partition(" ")[0] for message in first_column("Messages")}
    names = ("WARM", "BEGIN", "READY", "CONTROL", "HEARTBEAT")
    spoken: list[bytes] = [getattr(worker_protocol, name) for name in names]
    assert words == {word.decode().strip() for word in spoken} | {"CODE"}
    assert worker_protocol.Refusal(3, "why").to_line() == b"3 why\n"


def test_a_worker_begins_as_it_is_told_by_any_version_from_0_1_0_on() -> None:
    first = worker_protocol.Beginning(resumed=True, started=1794978325.253, restarts=3, reloads=1)
    assert worker_protocol.Beginning.from_line(b"begin 1 1794978325.253 3 1\n") == first
    assert worker_protocol.Beginning.from_line(b"begin 1 1794978325.253 3 1 something later\n") == first


@pytest.mark.mount
def test_a_worker_has_the_descriptors_that_the_page_names(mount: Mount) -> None:
    _, worker = mount.daemon()
    words = Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")[:-1]
    config, *numbers = words[words.index(b"kcachefs.daemon.worker") + 1 :]
    assert msgspec.json.decode(config, type=registry.MountConfig).mountpoint == str(mount.mountpoint)
    named = table("Descriptors")
    assert section("Supervisor and worker").count(" ".join(row[0] for row in named)) == 1
    for number, (argument, target, _) in zip(numbers, named, strict=True):
        assert target in os.readlink(f"/proc/{worker}/fd/{number.decode()}"), argument


def test_the_fleets_agent_speaks_as_the_page_says() -> None:
    speakers = {"worker": get_args(agent_protocol.ToAgent), "agent": get_args(agent_protocol.ToWorker)}
    spoken = {message.__name__: speaker for speaker, messages in speakers.items() for message in messages}
    assert {name: speaker for name, speaker, _ in table("Fleet agent")} == spoken
    said = " ".join(section("Fleet agent").split())
    first, longest = fleet_process.FIRST_PAUSE, fleet_process.LONGEST_PAUSE
    assert f"when it dies: after {first:g} s, then twice as long each time, {longest:g} s at most." in said
    assert f"the agent exits with {worker_protocol.REPLACED} and" in said
    assert fleet_process.FINISH == fleet_agent.FINISH
    assert f"it sends `{fleet_process.FINISH.decode()}`, and kills an agent that takes longer than" in said
    assert f"takes longer than {fleet_process.FINISH_SECONDS:g} s; before that" in said
    assert f"has waited for uploads, for {worker.OFFER_SECONDS:g} s at most." in said
    assert (agent_protocol.ALIVE_SECONDS, "every half second while it fetches |" in said) == (0.5, True)
    assert f"says nothing for {deliveries.SILENCE_SECONDS:g} s although it fetches" in said
    assert f"If the agent says nothing for {client.HUNG_SECONDS:g} s more, the worker sends" in said
    assert f"sends `{agent_protocol.HUNG.decode()}` to the supervisor" in said


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.mount
def test_the_state_file_has_the_fields_of_the_page(mount: Mount) -> None:
    path = registry.state_path(str(mount.mountpoint))
    check_fields("State", json.loads(path.read_bytes()))
    status = [sys.executable, "-m", "kcachefs", "status", "--json"]
    [shown] = [
        one
        for one in json.loads(subprocess.check_output(status))["mounts"]
        if one["mountpoint"] == str(mount.mountpoint)
    ]
    told_by_no_command = {
        *("reload_refusal", "locked", "namespace", "supervisor_ticks", "worker_ticks", "failure", "temporary")
    }
    assert set(shown) == set(first_column("State")) - {"started", "reloads_failed", *told_by_no_command} | {
        *("uptime_s", "state", "used_bytes", "max_bytes", "bytes_saved", "fleet")
    }


@pytest.mark.mount
def test_the_files_of_a_mount_are_those_of_the_page(mount: Mount) -> None:
    name = registry.name_of(str(mount.mountpoint))
    said = {word.strip() for cell in first_column("Files of a mount") for word in cell.split(",")}
    found = {f"NAME{path.suffix}" for path in registry.directory().glob(f"{name}.*")}
    assert {"NAME.json", "NAME.sock"} <= found <= said


# --- the control socket -----------------------------------------------------------------------------------------------


def test_every_verb_is_on_the_page_with_its_arguments() -> None:
    assert tuple(re.findall(r"^#### `(\w+)`$", PAGE, re.MULTILINE)) == control.VERBS
    for verb in control.VERBS:
        parameters = list(inspect.signature(getattr(Commands, verb)).parameters.values())[1:]
        told = {name: default for name, default, _ in table(f"`{verb}`")} if parameters else {}
        assert told == {one.name: _default(one) for one in parameters}, verb


def _default(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is inspect.Parameter.empty else json.dumps(parameter.default)


@pytest.mark.mount
def test_the_replies_of_a_real_mount_have_the_fields_of_the_page(mount: Mount) -> None:
    statistics = ask(mount, "stats")
    check_fields("Statistics", statistics)
    check_fields("Numbers", statistics["total"])
    check_fields("Numbers", statistics["namespaces"]["triton"])
    check_fields("Store", statistics["store"])
    [entry] = ask(mount, "ls")
    check_fields("Entry", entry)
    [made] = ask(mount, "entries", settle=True)
    check_fields("Made entry", {name: value for name, value in made.items() if name not in entry})
    artifacts = ask(mount, "artifacts", entries=[entry["entry"]])
    check_fields("Artifacts", artifacts)
    check_fields("Artifact", artifacts["found"][0])
    for sort in ("used", "size", "hits", "age"):
        assert f"`{sort}`" in section("`ls`")
        assert ask(mount, "ls", sort=sort) == [entry]
    for verb, arguments in (
        ("pin", {"patterns": ["triton/K*"]}),
        ("evict", {"patterns": [entry["path"]], "dry_run": True}),
        ("prune", {"unused": True, "dry_run": True}),
        ("gc", {"dry_run": True}),
    ):
        check_fields("Outcome", ask(mount, verb, **arguments))
    check_fields("Eviction progress", ask(mount, "progress"))
    ask(mount, "pin", patterns=["triton/K*"], pinned=False)
    check_fields("Settings", ask(mount, "settings"))
    check_fields("Settings", ask(mount, "set", options={}))


def line_to(path: Path, line: bytes) -> dict[str, Any]:
    """What the daemon replies to a line, said as the page says."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(line)
        raw = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert raw.endswith(b"\n")
    reply: dict[str, Any] = json.loads(raw)
    assert list(reply) == first_column("Reply")
    return reply


@pytest.mark.mount
def test_requests_and_errors_are_as_on_the_page(mount: Mount) -> None:
    path = registry.socket_path(str(mount.mountpoint))
    assert first_column("Request") == ["verb", "arguments"]
    example = re.search(r"^→ (.*)$", section("Control socket"), re.MULTILINE)
    assert example is not None
    reply = line_to(path, example[1].encode() + b"\n")
    assert (reply["error"], reply["exit_code"]) == ("", 0)
    assert reply["result"]["entries"] == ["triton/KEY"]
    wrong = {
        b"no JSON\n": "malformed",
        b'{"verb": "explode"}\n': "no such command",
        b'{"verb": "stats", "arguments": {"loudly": true}}\n': "malformed",
        b'{"verb": "ls", "arguments": {"sort": "colour"}}\n': "colour",
        b'{"verb": "pin", "arguments": {"patterns": ["triton/NONE"]}}\n': "triton/NONE",
        b'{"verb": "ls", "arguments": {"namespace": 5}}\n': "namespace",
        b'{"verb": "ls", "arguments": {"patterns": [1]}}\n': "patterns",
        b'{"verb": "ls", "arguments": {"patterns": "abc"}}\n': "patterns",
        b'{"verb": "artifacts", "arguments": {"entries": [-1]}}\n': "number of an entry",
        b'{"verb": "artifacts", "arguments": {"entries": [36893488147419103232]}}\n': "64 bits",
        b'{"verb": "artifacts", "arguments": {"entries": "x"}}\n': "entries",
        b'{"verb": "artifacts", "arguments": {"entries": [1], "files": ["' + b"a" * 5000 + b'"]}}\n': "a pattern",
        b'{"verb": "note_costs", "arguments": {"costs": {"x": 1}}}\n': "numbers of entries",
        b'{"verb": "set", "arguments": {"options": []}}\n': "options",
        b'{"verb": "set", "arguments": {"options": ' + b"[" * 5000 + b"]" * 5000 + b"}}\n": "malformed",
        b'{"verb": "ls", "arguments": {"patterns": ["' + b"a*" * 400_000 + b'"]}}\n': "longer than any name",
    }
    for line, word in wrong.items():
        reply = line_to(path, line)
        assert (reply["exit_code"], reply["result"]) == (2, None), line
        assert word in reply["error"]
    assert {"2", "6"} <= set(first_column("Errors"))
    page = " ".join(section("Request").split())
    assert f"At most {control.CONNECTIONS_MAX} connections are open and {control.AT_ONCE} requests are carried" in page
    assert f"for {control.SILENT_SECONDS:.0f} s is disconnected" in page


@as_root
@pytest.mark.mount
def test_anybody_else_is_refused_with_the_code_of_the_page(mount: Mount) -> None:
    path = registry.socket_path(str(mount.mountpoint))
    copy = mount.mountpoint.parent / "reachable.sock"
    os.link(path, copy)
    copy.chmod(0o666)
    try:

        def asked_by_another() -> int:
            try:
                control.ask(copy, "stats", {})
            except DaemonError as error:
                return error.exit_code
            return 0

        assert in_child(asked_by_another, OTHER) == 6
        assert "neither the mount's owner nor root" in dict(table("Errors"))["6"]
    finally:
        path.chmod(0o600)
        copy.unlink()


# --- .kcachefs --------------------------------------------------------------------------------------------------------


@pytest.mark.mount
def test_the_folder_in_the_mount_holds_what_the_page_says(mount: Mount) -> None:
    folder = mount.mountpoint / ".kcachefs"
    assert ".kcachefs" in os.listdir(mount.mountpoint)
    assert os.listdir(folder) == first_column("The `.kcachefs` folder")
    statistics = json.loads((folder / "stats.json").read_bytes())
    check_fields("Statistics", statistics)
    check_fields("Numbers", statistics["namespaces"]["triton"])
    until(lambda: json.loads((folder / "stats.json").read_bytes())["requests"], "a request is counted")
    metrics = re.findall(r"^# TYPE (\S+) (\S+)$", (folder / "metrics").read_text(), re.MULTILINE)
    assert metrics == [(name, kind) for name, kind, _ in table("Metrics")]


@as_root
@pytest.mark.mount
def test_another_user_sees_their_own_numbers_only(mount: Mount) -> None:
    def look() -> Any:
        return json.loads((mount.mountpoint / ".kcachefs" / "stats.json").read_bytes())

    seen = in_child(look, OTHER)
    check_fields("Statistics", seen)
    assert (seen["total"]["entries"], seen["requests"], seen["store"]["dedup_ratio"]) == (0, {}, 1)
