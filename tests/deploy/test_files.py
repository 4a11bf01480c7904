"""What is in deploy/ is real: every command parses, every manifest is valid, every path and variable is the same."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main

from kcachefs.cli import make_app
from kcachefs.config import parse_size
from kcachefs.frameworks import environment
from tests.deploy.containers import DAEMON
from tests.deploy.places import DEPLOY, ROOT, commands, documents, files

CACHE, STORE = "/srv/kcachefs/cache", "/var/cache/kcachefs"
SERVICE_KEYS = {
    *("build", "cap_add", "command", "depends_on", "devices", "environment", "healthcheck", "image", "pid"),
    *("restart", "security_opt", "stop_grace_period", "tmpfs", "volumes"),
}
PAGES = [ROOT / "README.md", ROOT / "docs" / "usage.md"]
ALL = [(path, arguments) for path in [*files(), *PAGES] for arguments in commands(path)]


@cache
def group() -> Any:
    return typer.main.get_command(make_app())


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The verb and its parameters from the command's own parser; raises where that would."""
    verb, *rest = arguments
    command = group().commands[verb]
    if not rest or (len(rest) == 1 and rest[0].startswith("--")):  # mentioned in a sentence: it only has to exist
        assert set(rest) <= {option for parameter in command.params for option in parameter.opts}
        return "", {}
    return verb, command.make_context(verb, rest).params


@pytest.mark.parametrize(
    ("path", "arguments"), ALL, ids=[f"{path.relative_to(ROOT)}: {' '.join(words[:4])}" for path, words in ALL]
)
def test_every_command_is_one_that_kcachefs_takes(path: Path, arguments: list[str]) -> None:
    verb, parameters = parsed(arguments)
    if verb == "mount" and parameters["max_size"] and "$" not in parameters["max_size"]:
        assert parse_size(parameters["max_size"]) >= 1 << 30


def test_the_commands_are_found_where_they_are() -> None:
    """Makes sure that the test above looks at something."""
    mounts = {str(path.relative_to(ROOT)) for path, arguments in ALL if arguments[0] == "mount"}
    assert mounts == {
        "README.md",
        "deploy/README.md",
        "docs/usage.md",
        "deploy/docker/compose.yaml",
        "deploy/kubernetes/daemonset.yaml",
        "deploy/slurm/prolog.sh",
        "deploy/systemd/kcachefs.service",
        "deploy/systemd/user/kcachefs.service",
    }
    assert sum(path == DEPLOY / "README.md" for path, _ in ALL) >= 8


def test_every_mount_names_its_policy_and_one_for_several_users_is_not_shared() -> None:
    for path, arguments in ALL:
        if path.is_relative_to(DEPLOY) and arguments[0] == "mount" and len(arguments) > 2:
            assert "--policy" in arguments, path
            chosen = arguments[arguments.index("--policy") + 1]
            assert chosen == (
                "shared" if path.parent.name == "user" else "$policy" if "slurm" in path.parts else "publish"
            )
            assert chosen == "shared" or "--max-size-per-uid" in arguments, path
    assert "\npolicy=publish " in (DEPLOY / "slurm" / "settings.sh").read_text()


def test_the_image_gets_only_what_it_needs() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*", "nothing is sent to the builder that is not named"
    needed = {"!kcachefs", "!pyproject.toml", "!README.md", "!LICENSE", "!docs/man", "!scripts/index_page.py"}
    needed |= {"!scripts/requirements/run.txt"}
    assert {word for word in ignored if word.startswith("!")} == needed


def test_the_image_can_be_built_from_what_it_gets(tmp_path: Path) -> None:
    """With the tools that scripts/requirements/run.txt installs, and nothing fetched."""
    pytest.importorskip("hatchling", reason="hatchling is not installed; scripts/test installs it")
    source = tmp_path / "src"
    for word in (ROOT / ".dockerignore").read_text().split():
        if word.startswith("!"):
            path = ROOT / word[1:]
            target = source / word[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, target)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", str(source)]
    done = subprocess.run([*command, "--wheel-dir", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("kcachefs-*.whl"))


def test_the_image_is_made_of_what_is_pinned() -> None:
    recipe = (DEPLOY / "docker" / "Dockerfile").read_text()
    [base] = re.findall(r"^FROM (.*)$", recipe, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert re.search(r":(3\.\d+)-", base)[1] in supported  # type: ignore[index]
    installs = re.findall(r"pip install (.*)$", recipe, re.MULTILINE)
    assert len(installs) == 2
    assert "--require-hashes --only-binary :all: -r /src/scripts/requirements/run.txt" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1], "the second fetches nothing"


def test_a_flag_that_does_not_exist_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_text("x && kcachefs mount /mnt --quotta 5 || kcachefs mount /mnt 9>&-\n")
    wrong, right = commands(tmp_path / "script.sh")
    assert right == ["mount", "/mnt"]
    with pytest.raises(Exception, match="No such option"):
        parsed(wrong)


def test_host_and_containers_have_the_cache_and_the_store_at_the_same_paths() -> None:
    for path, arguments in ALL:
        verb, parameters = parsed(arguments)
        if verb == "mount" and path.is_relative_to(DEPLOY) and path.parent.name not in ("user", "slurm"):
            assert (str(parameters["directory"]), str(parameters["store"])) == (CACHE, STORE), path
    settings = (DEPLOY / "slurm" / "settings.sh").read_text()
    assert f"\ncache={CACHE}\nstore={STORE}\n" in settings


@pytest.mark.parametrize("name", ["daemonset", "pod"])
def test_manifests_are_valid(name: str) -> None:
    found = documents(DEPLOY / "kubernetes" / f"{name}.yaml")
    assert found
    for document in found:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_a_wrong_manifest_would_be_noticed() -> None:
    [pod] = documents(DEPLOY / "kubernetes" / "pod.yaml")
    pod["spec"]["containers"][0]["volumeMounts"][0]["mountPropagations"] = "HostToContainer"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_the_daemonset_passes_its_mount_on_and_the_pod_receives_it() -> None:
    [daemon] = [one for one in documents(DEPLOY / "kubernetes" / "daemonset.yaml") if one["kind"] == "DaemonSet"]
    [pod] = documents(DEPLOY / "kubernetes" / "pod.yaml")
    sender, receiver = daemon["spec"]["template"]["spec"], pod["spec"]
    assert propagation(sender, "containers") == {"/srv/kcachefs": "Bidirectional"}
    assert sender["containers"][0]["securityContext"]["privileged"] is True
    for kind in ("containers", "initContainers"):
        assert propagation(receiver, kind) == {"/srv/kcachefs": "HostToContainer"}
    assert "securityContext" not in str(receiver)
    given = {variable["name"]: variable["value"] for variable in receiver["containers"][0]["env"]}
    assert given.items() <= environment(Path(CACHE)).items()
    labels = daemon["spec"]["template"]["metadata"]["labels"]
    assert daemon["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_daemon_in_a_container_can_tell_processes_apart() -> None:
    [daemon] = [one for one in documents(DEPLOY / "kubernetes" / "daemonset.yaml") if one["kind"] == "DaemonSet"]
    assert daemon["spec"]["template"]["spec"]["hostPID"] is True
    [compose] = documents(DEPLOY / "docker" / "compose.yaml")
    assert compose["services"]["kcachefs"]["pid"] == "host"
    lines = (DEPLOY / "README.md").read_text().replace("\\\n", " ").splitlines()
    starts = [line for line in lines if line.startswith(("docker run -d", "podman run -d"))]
    assert len(starts) == 2
    assert all(" --pid host " in line for line in starts)


def propagation(spec: dict[str, Any], kind: str) -> dict[str, str]:
    """The mount propagation of each host path, which must have the same path inside."""
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    [container] = spec[kind]
    mounts = [mount for mount in container["volumeMounts"] if "mountPropagation" in mount]
    assert all(paths[mount["name"]] == mount["mountPath"] for mount in mounts)
    return {mount["mountPath"]: mount["mountPropagation"] for mount in mounts}


def test_the_compose_file_says_what_the_command_line_says() -> None:
    [compose] = documents(DEPLOY / "docker" / "compose.yaml")
    assert set(compose) == {"services"}
    for service in compose["services"].values():
        assert set(service) <= SERVICE_KEYS
    daemon, user = compose["services"]["kcachefs"], compose["services"]["train"]
    [lines] = {tuple(words) for words in commands(DEPLOY / "README.md") if words[:2] == ["mount", "-f"]}
    assert tuple(daemon["command"]) == lines
    assert (daemon["devices"], daemon["cap_add"], daemon["tmpfs"]) == (
        ["/dev/fuse"],
        ["SYS_ADMIN"],
        ["/run:mode=1777"],
    )
    travel = {volume["source"]: volume["bind"].get("propagation") for volume in daemon["volumes"]}
    assert travel == {"/srv/kcachefs": "rshared", STORE: None}
    [seen] = user["volumes"]
    assert (seen["source"], seen["target"], seen["bind"]["propagation"]) == ("/srv/kcachefs", "/srv/kcachefs", "rslave")
    assert user["environment"].items() <= environment(Path(CACHE)).items()
    build = (DEPLOY / "docker" / daemon["build"]["context"]).resolve()
    assert (build / daemon["build"]["dockerfile"]).is_file()


def test_the_daemon_of_the_image_is_not_root_and_has_its_folders() -> None:
    recipe = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert f"\nUSER {DAEMON}:{DAEMON}\n" in recipe
    assert f"useradd --uid {DAEMON} " in recipe
    [daemon] = [one for one in documents(DEPLOY / "kubernetes" / "daemonset.yaml") if one["kind"] == "DaemonSet"]
    spec = daemon["spec"]["template"]["spec"]
    assert spec["containers"][0]["securityContext"]["runAsUser"] == DAEMON
    [folders] = spec["initContainers"]
    made = f"install -d -o {DAEMON} -g {DAEMON} {CACHE}"
    assert f"chown {DAEMON}:{DAEMON} {STORE}" in folders["command"][-1]
    assert made in folders["command"][-1]
    for page in ("README.md", "docker/compose.yaml"):
        assert f"{made} {STORE}" in (DEPLOY / page).read_text(), page
    lines = (DEPLOY / "README.md").read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        if line.startswith(("docker run -d", "podman run -d")):
            assert " --tmpfs /run:mode=1777 " in line
            assert "no-new-privileges" not in line


def test_the_page_names_every_file() -> None:
    page = (DEPLOY / "README.md").read_text()
    for path in files():
        name = str(path.relative_to(DEPLOY))
        assert name in page or path.parent.name == "slurm" or name == "README.md", f"{name} is not on the page"


def test_shell_scripts_are_clean() -> None:
    scripts = sorted((DEPLOY / "slurm").glob("*.sh"))
    assert len(scripts) == 4
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    done = subprocess.run(["shellcheck", "-x", "-P", "SCRIPTDIR", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
