"""`kcachefs web`: shows mounts in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.usage import a_path
from kcachefs.errors import UsageError

NEEDS_EXTRA = "it needs the extra `live`; install it with: pip install 'kcachefs[live]'"


def web(
    directory: target.FirstShown = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="WHERE",
            help="ADDRESS:PORT (port 0: any free one), or unix:PATH for a socket that only you can connect to.",
        ),
    ] = "127.0.0.1:0",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let the page pin and evict entries; without this it only shows.")
    ] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="/PATH", help="Where a proxy puts the page, if not at its root.")
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="A host name under which browsers reach it, for a proxy. Repeatable."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Keep the token here, so that links and scrapers outlast a restart; made if it is missing.",
            parser=a_path,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where it is and its token as one line of JSON, instead of the link.")
    ] = False,
) -> None:
    """Show mounts in a browser: one page, served on this machine until Ctrl-C.

    Prints a link with a token in it; without the token nobody sees anything. The page shows what a mount holds, hits
    and misses over time, why things were compiled, runs, kernels with source and PTX, and events. /metrics has the
    mount's metrics for Prometheus, which may send the token as a bearer token.
    """
    try:
        from kcachefs.live.web import access, listening, server
    except ModuleNotFoundError as error:
        raise UsageError(f"web: {NEEDS_EXTRA}" if error.name == "h11" else str(error)) from None

    place = listening.parse(listen)
    if prefix and (
        not prefix.startswith("/")
        or prefix.endswith("/")
        or not (prefix.isascii() and prefix.isprintable())
        or set(prefix) & set(' ";?#%')
    ):
        raise UsageError(f"--prefix {prefix}: must be a path like /kcachefs, with no slash at the end")
    token = access.token_in(token_file) if token_file is not None else access.new_token()
    hosts = [*(allow_host or ()), *([place.host] if place.host else [])]
    if not place.is_local:
        import socket

        hosts.append(socket.gethostname())
        print(
            "kcachefs: others can connect to this address, and HTTP is not encrypted; a tunnel is safer",
            file=sys.stderr,
        )
    allowed = access.Access(token, hosts, prefix)

    def started(link: str) -> None:
        if as_json:
            import json

            told = {"link": link, "token": token, "socket": str(place.path) if place.path is not None else None}
            print(json.dumps(told), flush=True)
            return
        over = f" (over the socket {place.path})" if place.path is not None else ""
        print(f"{link}{over}", flush=True)

    server.serve(place, allowed, _shown(directory), allow_changes=allow_changes, started=started)


def _shown(directory: Path | None) -> list[Path]:
    """The chosen mount, then this user's other ones."""
    from kcachefs import config
    from kcachefs.daemon import registry
    from kcachefs.mounts import finding

    own = [Path(state.mountpoint) for state in registry.all_mounts()]
    wanted = directory or config.configured_mount()
    first = finding.find(directory) if wanted is not None or not own else own[0]
    return list(dict.fromkeys([first, *own]))
