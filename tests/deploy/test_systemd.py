"""The units: systemd accepts them, and what they start really runs as they say."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.scene import Scene, scene
from tests.deploy.booted_systemd import booted
from tests.deploy.places import DEPLOY
from tests.waiting import PATIENCE

UNITS = {"system": DEPLOY / "systemd" / "kcachefs.service", "user": DEPLOY / "systemd" / "user" / "kcachefs.service"}


class Unit:
    """A unit with its paths moved into a scene."""

    def __init__(self, kind: str, scene: Scene) -> None:
        self.path = scene.folder / "kcachefs.service"
        program = scene.folder / "bin" / "kcachefs"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kcachefs "$@"\n')
        program.chmod(0o755)
        text = UNITS[kind].read_text()
        for there, here in (
            ("/usr/local/bin/kcachefs", program),
            ("%h/.local/bin/kcachefs", program),
            ("/srv/kcachefs/cache", scene.mountpoint),
            ("%h/kcache", scene.mountpoint),
            ("--store /var/cache/kcachefs", f"--store {scene.store}"),
        ):
            text = text.replace(there, str(here))
        self.path.write_text(text)
        parser = configparser.ConfigParser(interpolation=None, strict=False)  # settings may be repeated
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(text)
        self.service = dict(parser["Service"])

    def command(self) -> list[str]:
        """ExecStart under the unit's own restrictions of privileges."""
        confined = ["setpriv"]
        if self.service.get("NoNewPrivileges") == "yes":
            confined.append("--no-new-privs")
        if kept := self.service.get("CapabilityBoundingSet", "").lower().replace("cap_", "").split():
            confined += ["--bounding-set", ",".join(["-all", *(f"+{name}" for name in kept)])]
        return [*confined, *shlex.split(self.service["ExecStart"])]


@pytest.mark.parametrize("kind", UNITS)
def test_systemd_has_nothing_to_say_about_a_unit(kind: str) -> None:
    with scene() as place:
        unit = Unit(kind, place)
        told = verify(kind, unit.path)
        assert (told.returncode, told.stdout + told.stderr) == (0, "")
        unit.path.write_text(unit.path.read_text().replace("KillMode=mixed", "KillMode=gently"))
        assert "gently" in verify(kind, unit.path).stderr


def verify(kind: str, unit: Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "verify", "--man=no", f"--{kind}", str(unit)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(unit.parent)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE)


def test_the_systems_unit_is_rated_well_and_names_a_reason_for_each_exception() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS["system"])]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    [rating] = re.findall(r"Overall exposure level for kcachefs.service: ([0-9.]+)", told)
    assert float(rating) < 4.0
    text = UNITS["system"].read_text()
    explained = {"CapabilityBoundingSet", "DeviceAllow", "RestrictAddressFamilies", "SystemCallFilter"}
    for setting in re.findall(r"^✗ (\w+)=", told, re.MULTILINE):
        assert setting in explained or f"{setting}=" in text, f"the unit does not say why it lacks {setting}="


@pytest.mark.mount
def test_systemd_runs_the_unit_as_it_is_and_the_host_sees_the_mount(tmp_path: Path) -> None:
    cache = "/srv/kcachefs/cache"
    with booted(UNITS["system"], tmp_path) as manager:
        manager.must("systemctl", "start", "kcachefs.service")
        manager.must("sh", "-c", f"echo text > {cache}/triton/file")
        before = manager.show("MainPID")
        manager.must("systemctl", "reload", "kcachefs.service")
        assert manager.must("cat", f"{cache}/triton/file") == "text\n"
        worker = manager.must("sh", "-c", "pgrep -f kcachefs.daemon.worker").split()[0]
        manager.must("kill", "-KILL", worker)
        assert manager.must("cat", f"{cache}/triton/file") == "text\n"
        other = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "sh", "-c"]
        manager.must(*other, f"mkdir {cache}/triton/KEY && echo more > {cache}/triton/KEY/kernel")
        assert manager.run(*other, f"echo evil > {cache}/triton/file").returncode != 0, "its policy is publish"
        assert (manager.show("MainPID"), manager.show("ActiveState")) == (before, "active")
        manager.must("systemctl", "stop", "kcachefs.service")
        assert manager.show("Result") == "success"
        manager.must("systemctl", "start", "kcachefs.service")
        assert manager.must("cat", f"{cache}/triton/file", f"{cache}/triton/KEY/kernel") == "text\nmore\n"
        told = manager.must("cat", "/var/log/kcachefs.log")
        assert f"mounted /var/cache/kcachefs at {cache}" in told
        assert "the worker can" not in told, "it could confine itself"
        manager.must("systemctl", "stop", "kcachefs.service")
        assert manager.run("mountpoint", "--quiet", cache).returncode != 0


@pytest.mark.mount
@pytest.mark.parametrize("kind", UNITS)
def test_what_a_unit_starts_says_when_it_is_ready_outlives_a_reload_and_stops(kind: str) -> None:
    with scene() as place:
        unit = Unit(kind, place)
        assert unit.service["Type"] == "notify"
        with running(unit, place) as (process, told):
            assert told() == b"READY=1"
            (place.mountpoint / "triton" / "file").write_text("text")
            [before] = place.status()
            reload = shlex.split(unit.service["ExecReload"])
            subprocess.run(reload, env=place.environment, check=True, capture_output=True, timeout=PATIENCE)
            [after] = place.status()
            assert (after["supervisor_pid"], after["restarts"]) == (process.pid, 0)
            assert after["worker_pid"] != before["worker_pid"]
            assert (place.mountpoint / "triton" / "file").read_text() == "text"
            process.send_signal(signal.SIGTERM)
            assert told() == b"STOPPING=1"
            assert process.wait(PATIENCE) == 0
        assert place.is_over()


@contextmanager
def running(unit: Unit, place: Scene) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], bytes]]]:
    address = str(place.folder / "manager")
    environment = {**place.environment, "NOTIFY_SOCKET": address}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE)
        # A service has no terminal.
        with subprocess.Popen(unit.command(), env=environment, start_new_session=True) as process:
            try:
                yield process, lambda: manager.recv(100)
            finally:
                process.kill()
