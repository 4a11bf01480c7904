"""One mount with real kernels, real misses and a real hit, one server and one browser for all tests of the page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.cli.scene import Scene, scene
from tests.live.web.serving import Server, serving
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
FEATURES_OFF = (
    # Chromium loads two pages of its own for the address bar of every window, which cost more than ours does.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    # Those that playwright switches off: chromium goes by the last list that it is given.
    "AimEnabled",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
CHANGES = ("bins", "odd_n")
HOSTILE = "<img src=x onerror=document.title='hacked'><script>document.title='hacked'<"
"""What a kernel may be called that somebody named to do harm."""

Opener = Callable[..., "Page"]


@pytest.fixture(scope="session")
def place(kernels: Path) -> Iterator[Scene]:
    """A mount on which one run made kernels, two others changed ones, one a hostile one, and one had hits."""
    with _mount_with(kernels) as made:
        bring(made, _hostile(kernels, made.folder / "hostile"))
        read_until_hit(made)
        yield made


@pytest.fixture(scope="session")
def other_place(kernels: Path) -> Iterator[Scene]:
    """Another such mount, for tests that add to it: on `place` the last run that compiled something stays the last."""
    with _mount_with(kernels) as made:
        yield made


@contextmanager
def _mount_with(kernels: Path) -> Iterator[Scene]:
    with scene() as made:
        made.mount("--allow-other")
        for name in ("base", *CHANGES):
            bring(made, kernels / name)
        yield made


@pytest.fixture(scope="session")
def server(place: Scene) -> Iterator[Server]:
    with serving(place, place.mountpoint) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium; playwright's own would be a download of its own.

    It ends with its module: as long as playwright runs, asyncio has a running loop in this process.
    """
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with api.sync_playwright() as driver:
        options = ["--disable-dev-shm-usage", f"--disable-features={','.join(FEATURES_OFF)}"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        made = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield made
        made.close()


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Page]:
    """Where all pages of a module are opened, one after the other: a new window costs as much as most pages do."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    yield context.new_page()
    context.close()


@pytest.fixture
def opened(window: Page) -> Iterator[Opener]:
    """Opens a page. It may not write to the console, fail, or ask anybody but its own server."""
    with ExitStack() as stack:
        yield lambda link, **options: stack.enter_context(_page(window, link, **options))


@contextmanager
def _page(
    page: Page,
    link: str,
    *,
    expected: tuple[str, ...] = (),
    width: int = 1280,
    height: int = 900,
    color_scheme: Literal["dark", "light"] = "light",
) -> Iterator[Page]:
    assert page.url == "about:blank", "the window shows one page at a time"
    noise: list[str] = []
    own = link.partition("?")[0]
    listeners: dict[str, Callable[[Any], None]] = {
        "console": lambda one: noise.append(one.text),
        "pageerror": lambda one: noise.append(str(one)),
        "request": lambda one: None if one.url.startswith((own, "data:")) else noise.append(one.url),
    }
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=color_scheme)
    for name, listener in listeners.items():
        page.on(name, listener)  # type: ignore[call-overload]
    try:
        page.goto(link)
        yield page
        assert [one for one in noise if not any(word in one for word in expected)] == []
    finally:
        for name, listener in listeners.items():
            page.remove_listener(name, listener)
        page.goto("about:blank")
        page.context.clear_cookies()


def bring(place: Scene, folder: Path) -> None:
    """A run of its own that makes these entries, as a compiler would."""
    entries = [str(one) for one in sorted(folder.iterdir())]
    subprocess.run(["cp", "-r", *entries, str(place.mountpoint / "triton")], check=True, timeout=PATIENCE)
    place.settle()


def read_until_hit(place: Scene) -> None:
    """For a second after it was made, the kernel asks nobody for an entry's name, and no hit is counted."""
    script = "import sys, pathlib; [p.read_bytes() for p in pathlib.Path(sys.argv[1]).glob('*/*.json')]"

    def hits() -> bool:
        subprocess.run([sys.executable, "-c", script, str(place.mountpoint / "triton")], check=True, timeout=PATIENCE)
        return bool(stats(place)["total"]["hits"])

    until(hits, pause=0.3)


def stats(place: Scene) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.must("stats", "--json", "--mount", place.mountpoint))
    return found


def _hostile(kernels: Path, folder: Path) -> Path:
    """A real kernel under a name that would run if a page took it for HTML."""
    source = sorted((kernels / "bins").iterdir())[0]
    stem = next(one.name for one in source.glob("__grp__*.json"))[len("__grp__") : -len(".json")]
    entry = folder / ("H" * 52)
    entry.mkdir(parents=True)
    for file in source.iterdir():
        shutil.copy2(file, entry / file.name.replace(stem, HOSTILE))
    told = entry / f"{HOSTILE}.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), "name": HOSTILE}))
    group = entry / f"__grp__{HOSTILE}.json"
    group.write_text(group.read_text().replace(f"{stem}.", f"{HOSTILE}."))
    return folder
