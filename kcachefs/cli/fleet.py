"""`kcachefs fleet`: keys with which packs are signed, and buckets through which hosts share what they compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.fleet_bucket import ls, pull, push, status
from kcachefs.cli.fleet_setup import check, gc, init
from kcachefs.cli.printing import print_json
from kcachefs.cli.usage import a_path

_HELP = "Share compiled kernels between hosts through a bucket: keys, set-up, and what is in it."
fleet_app = typer.Typer(name="fleet", no_args_is_help=True, help=_HELP)


@fleet_app.callback(help=_HELP)
def _fleet() -> None:
    pass


@fleet_app.command("keygen")
def keygen(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Where to put the secret key; the public one goes to FILE.pub.",
            show_default="fleet.key in ~/.config/kcachefs",
            parser=a_path,
        ),
    ] = None,
    as_json: target.Json = False,
) -> None:
    """Make a key to sign packs with. Whoever has the secret key can run code wherever the public one is trusted."""
    from kcachefs.fleet import signing

    secret = file or signing.default_key()
    public, text = signing.keygen(secret)
    if as_json:
        print_json({"secret": str(secret), "public": str(public), "key": text})
        return
    print(f"secret key: {secret} (keep it to yourself)")
    print(f"public key: {public}")
    print(f"others trust it with: --trust {text}")
    print("or for good: put the public key into the folder trusted/ of ~/.config/kcachefs or /etc/kcachefs")


for _verb in (init, check, status, ls, push, pull, gc):
    fleet_app.command(_verb.__name__)(_verb)
