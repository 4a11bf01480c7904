"""Who gets to see the page: the token, the Host header, and what a request that changes something has to bring."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kcachefs.live.web import access, assets
from tests.cli.scene import KCACHEFS, Scene
from tests.live.web.conftest import stats
from tests.live.web.serving import Server, serving
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.mount, pytest.mark.slow]


def test_without_the_token_nobody_sees_anything(server: Server) -> None:
    for path in ("/", "/page.js", "/api/glance", "/metrics", "/nowhere", "/?token=", "/?token=wrong"):
        assert server.get(path, token=False).status == 403, path
    assert server.get("/", token=False, Authorization="Bearer wrong").status == 403
    assert server.get("/", token=False, Cookie="kcachefs-00000000=x; garbage").status == 403


def test_the_link_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_gets(server: Server) -> None:
    found = server.get(f"/?token={server.token}", token=False)
    assert (found.status, found.headers["location"]) == (303, "./")
    cookie, *rest = found.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(rest)
    assert server.get("/", token=False, Cookie=cookie).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "", "127.0.0.1.evil.example"])
def test_a_host_that_somebody_made_lead_here_is_misdirected(server: Server, host: str) -> None:
    assert server.get("/", Host=host).status == 421
    assert server.get("/", token=False, Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:9", "LOCALHOST"])
def test_a_tunnel_may_end_at_another_port(server: Server, host: str) -> None:
    assert server.get("/", Host=host).status == 200


def test_the_browser_is_told_to_load_nothing_from_elsewhere(server: Server) -> None:
    headers = server.get("/").headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_it_only_shows_unless_changes_are_allowed(server: Server, place: Scene) -> None:
    body = json.dumps({"path": "triton/*"}).encode()
    assert server.post("/api/evict", body, X_Kcachefs_Change="evict").status == 403
    assert server.get("/api/evict").status == 404
    assert server.get("/", method="DELETE").status == 405


def test_changes_come_from_the_page_itself_and_mean_one_entry(place: Scene, kernels: Path) -> None:
    with serving(place, place.mountpoint, "--allow-changes") as server:
        path = f"triton/{sorted((kernels / 'base').iterdir())[0].name}"
        body = json.dumps({"path": path}).encode()
        before = stats(place)["total"]["entries"]

        def post(what: str, body: bytes = body, **headers: str) -> int:
            return server.post(f"/api/{what}", body, **headers).status

        assert post("pin") == 403
        assert post("pin", X_Kcachefs_Change="pin", Origin="http://evil.example") == 403
        assert post("pin", X_Kcachefs_Change="pin", Sec_Fetch_Site="cross-site") == 403
        assert post("nonsense", X_Kcachefs_Change="x") == 404
        assert post("pin", b"{", X_Kcachefs_Change="pin") == 400
        assert post("evict", json.dumps({"path": "triton/*"}).encode(), X_Kcachefs_Change="evict") == 404
        assert post("pin", json.dumps({"path": "triton/NONE"}).encode(), X_Kcachefs_Change="pin") == 404
        assert stats(place)["total"]["entries"] == before
        assert post("pin", X_Kcachefs_Change="pin", Origin=server.origin) == 200
        assert [one["path"] for one in json.loads(place.must("ls", "--json")) if one["pinned"]] == [path]
        assert post("unpin", X_Kcachefs_Change="unpin") == 200


def test_a_socket_in_the_filesystem_is_for_its_owner_alone(place: Scene) -> None:
    path = place.folder / "page.sock"
    with serving(place, place.mountpoint, "--listen", f"unix:{path}") as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.api("glance")["headline"]["mountpoint"] == str(place.mountpoint)
        place.run("web", "--listen", f"unix:{path}").refused_with(4, "cannot listen there")
    assert not path.exists()


def test_a_port_that_is_taken_is_one_line(place: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        place.run("web", place.mountpoint, "--listen", where).refused_with(4, where, "cannot listen there")


def test_a_proxy_may_put_it_under_a_prefix_and_a_name_and_a_token_may_last(place: Scene) -> None:
    path = place.folder / "token"
    lasting = access.token_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with serving(place, "--prefix", "/caches", "--allow-host", "proxy.example", "--token-file", path) as server:
        assert server.token == lasting == access.token_in(path)
        assert urlsplit(server.link).path == "/caches/"
        assert server.get("/caches/page.css").status == 200
        assert server.get("/page.css").status == 200, "the proxy may take the prefix away"
        assert server.get("/caches").headers["location"] == "/caches/"
        assert server.get("/caches/", Host="proxy.example").status == 200
        assert "Path=/caches;" in server.get(f"/caches/?token={server.token}").headers["set-cookie"]
    place.run("web", "--prefix", "no/slash").refused_with(2, "--prefix")
    path.write_text("short\n")
    place.run("web", "--token-file", path).refused_with(2, "holds no token")


def test_prometheus_gets_what_the_mount_reports(server: Server, place: Scene) -> None:
    def names(text: str) -> set[str]:
        lines = (one for one in text.splitlines() if not one.startswith(("kcachefs_uptime", "kcachefs_requests")))
        return {one.partition(" ")[0] for one in lines}

    def are_the_same() -> bool:
        """Not at once: the kernel may make a request of another kind between the two."""
        own = (place.mountpoint / ".kcachefs" / "metrics").read_text()
        return len(names(own)) > 100 and names(server.get("/metrics").body.decode()) == names(own)

    assert server.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    until(are_the_same)
    assert server.get(f"/metrics?token={server.token}", token=False).status == 200


def test_what_is_no_http_or_too_much_of_it_is_refused(server: Server) -> None:
    place = urlsplit(server.link)
    for sent, status in ((b"nonsense\r\n\r\n", b"400"), (b"GET / HTTP/1.0\r\n\r\n", b"421")):
        with socket.create_connection((str(place.hostname), place.port or 0)) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(4096).split()[1] == status
    assert server.post("/api/pin", b"x" * 100_000).status == 413
    assert server.get("/api/series?range=9y").status == 400
    assert server.get("/api/causes?run=x").status == 400
    assert server.get("/api/glance?mount=/etc").status == 400
    assert server.get("/", method="HEAD").body == b""


def test_the_link_is_all_that_it_prints(place: Scene) -> None:
    command = [*KCACHEFS, "web", str(place.mountpoint), "--listen", f"unix:{place.folder}/link.sock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=place.environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(PATIENCE) == 0
    assert re.fullmatch(rf"http://localhost/\?token=[\w-]+ \(over the socket {place.folder}/link\.sock\)\n", line)


def test_the_extra_is_named_where_it_is_missing(place: Scene) -> None:
    (place.folder / "h11.py").write_text("raise ModuleNotFoundError(\"No module named 'h11'\", name='h11')\n")
    environment = {**place.environment, "PYTHONPATH": f"{place.folder}:{place.environment['PYTHONPATH']}"}
    place.run("web", env=environment).refused_with(2, "kcachefs[live]")


def test_a_browser_that_knows_the_latest_is_not_told_again(server: Server) -> None:
    def known() -> bool:
        first = server.api("glance")
        return set(server.api("glance", revision=str(first["revision"]))) == {"now", "revision"}

    until(known, pause=0.2)


def test_every_file_of_the_page_is_used(server: Server) -> None:
    folder = Path(assets.__file__).parent / "page"
    script, style = server.get("/page.js").body.decode(), server.get("/page.css").body.decode()
    for file in folder.iterdir():
        text = file.read_text()
        assert text in script if file.suffix == ".js" else text in (style, server.get("/").body.decode()), file.name
