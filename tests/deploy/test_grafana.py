"""deploy/grafana with a real Prometheus: it scrapes a real mount, and every expression there has something to show."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcachefs.daemon import registry
from tests.core.policies.mounts import settled, triton_put
from tests.deploy.places import DEPLOY
from tests.engines.mounting import Mount, temporary_folder
from tests.fleet.mounts import Fleet, wait_for_agent
from tests.waiting import PATIENCE, until

DASHBOARD = json.loads((DEPLOY / "grafana" / "kcachefs.json").read_text())
RULES = DEPLOY / "grafana" / "alerts.yaml"
CHECKED_BY_HAND = Path(__file__).with_name("alerts_test.yaml")


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    if found is None:
        pytest.skip(f"needs {name}, which is in Debian's package prometheus")
    return found


def expressions() -> list[str]:
    """Those of the panels and of the annotations, as Grafana would send them for one mount and the last minutes."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    found += [one["expr"] for one in DASHBOARD["annotations"]["list"]]
    return [re.sub(r"\$__(rate_interval|range)", "5m", one).replace("$instance", ".*") for one in found]


def rules() -> dict[str, str]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **arguments: str) -> Any:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def value(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def is_ready(self) -> bool:
        try:
            return bool(self.get("targets")["activeTargets"])
        except OSError:
            return False


@contextmanager
def scraping(folder: Path, target: str) -> Iterator[Prometheus]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "prometheus.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [{"job_name": "kcachefs", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    command = [
        *(program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        made = Prometheus(port)
        until(made.is_ready, "Prometheus answers")
        yield made
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.mount
def test_every_expression_of_the_dashboard_and_the_rules_works_on_a_real_mount() -> None:
    program("prometheus")
    pytest.importorskip("obstore")
    with temporary_folder() as base, Fleet(base).node("node", "direct", "--metrics-listen", ":0") as mount:
        wait_for_agent(mount)
        state = registry.read(str(mount.mountpoint))
        assert state is not None
        with scraping(base, state.metrics) as prometheus:
            until(lambda: _is_up(prometheus, 1), "it is scraped")
            _use(mount, "FIRST")
            until(lambda: prometheus.value("kcachefs_hits_total > 0"), "the first hit is seen")
            _use(mount, "SECOND")
            for expression in expressions():
                if "changes(" in expression:
                    prometheus.value(expression)  # marks failovers: there is none yet
                else:
                    until(lambda one=expression: prometheus.value(one), f"data for {expression}")  # type: ignore[misc]
            assert {one["labels"]["alertname"] for one in prometheus.get("alerts")["alerts"]} == set()
            for expression in rules().values():
                assert prometheus.value(expression) == []
            os.kill(mount.daemon()[1], signal.SIGKILL)
            until(lambda: prometheus.value("changes(kcachefs_restarts_total[5m]) > 0"), "the failover is seen")
            until(lambda: _is_up(prometheus, 1), "another worker serves")
            os.kill(mount.daemon()[1], signal.SIGSTOP)
            try:
                until(lambda: prometheus.value(rules()["KcachefsWorkerDown"]), "the worker is down")
            finally:
                os.kill(mount.daemon()[1], signal.SIGCONT)


def _is_up(prometheus: Prometheus, wanted: int) -> bool:
    return any(one["value"][1] == str(wanted) for one in prometheus.value("kcachefs_worker_up"))


def _use(mount: Mount, name: str) -> None:
    """Make an entry, and use it as another program does: a second later, when the kernel asks for its name again."""
    folder = mount.mountpoint / "triton" / name
    triton_put(folder, "add.cubin", os.urandom(64 << 10))
    before = settled(mount).total.hits

    def is_hit() -> bool:
        command = [sys.executable, "-S", "-c", "import sys; open(sys.argv[1], 'rb').read()", str(folder / "add.cubin")]
        subprocess.run(command, check=True, timeout=PATIENCE)
        return settled(mount).total.hits > before

    until(is_hit, "a hit is counted", pause=0.2)


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    promtool = program("promtool")
    checked = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    assert f"{len(rules())} rules found" in checked.stdout
    done = subprocess.run(
        [promtool, "test", "rules", str(CHECKED_BY_HAND)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(rules()) == set(re.findall(r'alertname="(\w+)"', CHECKED_BY_HAND.read_text()))


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_and_the_rules_name_only_metrics_that_there_are() -> None:
    page = (DEPLOY.parent / "docs" / "protocols.md").read_text()
    told = set(re.findall(r"^\| `(kcachefs_\w+)` \|", page, re.MULTILINE))
    for text in (*expressions(), *rules().values()):
        for name in re.findall(r"kcachefs_\w+", text):
            plain = re.sub("_(bucket|sum|count)$", "", name)
            assert plain in told or plain.startswith("kcachefs_fleet_"), name
