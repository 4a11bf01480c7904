"""`kcachefs status`: lists the mounts of this user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.cli.printing import counted
from kcachefs.config import format_size
from kcachefs.errors import DaemonError, DaemonRefused
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.core.report import FleetNumbers, Statistics
    from kcachefs.daemon.registry import MountState

_ANSWER_SECONDS = 5.0


def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List your mounts, the dead ones too."""
    from kcachefs.cli.printing import print_json
    from kcachefs.daemon import registry
    from kcachefs.mounts.finding import unlisted

    mounts = registry.all_mounts()
    dead = registry.dead_mounts()
    if as_json:
        rows = [_row(state) for state in (*mounts, *dead)]
        print_json({"mounts": rows})
        return
    for state in dead:
        print(printable(state.mountpoint))
        print(printable(f"  store     {state.store}"))
        print(printable(f"  dead      its daemon is gone; repair: {registry.repair(state)}"))
        print(printable(f"  log       {state.log}"))
    others = unlisted()
    for other in others:
        print(printable(other.mountpoint))
        print(printable(f"  store     {other.source}"))
        print("  unlisted  its daemon has no record here: it is another user's, or was mounted outside this container")
    if not (mounts or dead or others):
        print("no mounts; make one with: kcachefs mount")
        return
    for state in mounts:
        print(printable(state.mountpoint))
        print(printable(f"  store     {state.store}"))
        print(f"  engine    {state.engine}")
        print(f"  policy    {state.policy}")
        numbers, trouble = _numbers(state)
        if numbers is None:
            print(f"  holds     unknown: {printable(trouble)}")
        else:
            below = numbers.store
            used, quota, saved = map(format_size, (below.used_bytes, below.max_bytes, below.bytes_saved))
            print(f"  holds     {used} of {quota}, {saved} saved")
            if below.trouble:
                print(f"  trouble   nothing can be written to the store: {printable(below.trouble)}")
            if numbers.fleet is not None:
                print(f"  fleet     {_fleet(numbers.fleet)}")
        print(f"  process   {_processes(state)}, up {_duration(state.uptime_s)}")
        if not state.supervised:
            print("            (the supervisor is dead, so nothing replaces the worker: unmount and mount again)")
        last = f", the last one after {state.last_exit}" if state.last_exit else ""
        print(f"  restarts  {state.restarts}{last}" + (f"; {state.reloads} reloads" if state.reloads else ""))
        if state.engine == "pyfuse3":
            print("            (this engine cannot take over from a dead worker: the mount ends with its worker)")
        if state.metrics:
            print(f"  metrics   http://{state.metrics}/metrics")
        print(f"  log       {state.log or 'standard error of the supervisor'}")


def _processes(state: MountState) -> str:
    supervisor, worker = state.processes()
    if not worker and not supervisor:
        return "in another PID namespace, such as a container's"
    return f"{worker or 'none at the moment'}" + (f" (supervisor {supervisor})" if supervisor else "")


def _fleet(told: FleetNumbers) -> str:
    """What a mount got from its fleet, on one line."""
    state = told.state if told.state == "ready" or not told.why else f"{told.state} ({printable(told.why)})"
    age = f"index {_duration(told.index_age)} old" if told.index_age >= 0 else ""
    index = f"{counted(told.index_packs, 'pack')}, {age}" if age else "no index yet"
    saved = f", {_duration(told.saved_seconds)} of compiling saved" if told.saved_seconds >= 1 else ""
    waits = "waits" if told.queue == 1 else "wait"
    queue = f"; {counted(told.queue, 'entry', 'entries')} {waits} to be published" if told.queue else ""
    if told.publish_why:
        queue += f" ({printable(told.publish_why)})" if queue else f"; not published: {printable(told.publish_why)}"
    brought = f"{counted(told.hits, 'hit')}, {counted(told.entries, 'entry', 'entries')} brought in"
    return f"{state}: {index}; {brought}{saved}{queue}"


def _numbers(state: MountState) -> tuple[Statistics | None, str]:
    """The mount's statistics, or why its daemon does not tell them: then the rest of its status matters more."""
    from kcachefs.core.report import Statistics
    from kcachefs.daemon import control

    if not state.alive:
        return None, "its daemon is gone"
    try:
        return control.ask_mount(state.mountpoint, "stats", Statistics, seconds=_ANSWER_SECONDS), ""
    except DaemonRefused as error:
        return None, str(error)
    except DaemonError:
        return None, "the worker does not answer"


def _row(state: MountState) -> dict[str, object]:
    numbers, _ = _numbers(state)
    below = numbers.store if numbers is not None else None
    supervisor, worker = state.processes()
    return {
        "mountpoint": state.mountpoint,
        "store": state.store,
        "engine": state.engine,
        # The process ID of a process that is gone may be reused by now, and scripts send signals to these IDs.
        "supervisor_pid": supervisor or None,
        "worker_pid": worker or None,
        "restarts": state.restarts,
        "uptime_s": round(state.uptime_s, 1),
        "log": state.log,
        "last_exit": state.last_exit,
        "reloads": state.reloads,
        "version": state.version,
        "metrics": state.metrics,
        "policy": state.policy,
        "state": "served" if state.supervised else "unsupervised" if state.alive else "dead",
        "used_bytes": below.used_bytes if below is not None else None,
        "max_bytes": below.max_bytes if below is not None else None,
        "bytes_saved": below.bytes_saved if below is not None else None,
        "fleet": numbers.fleet if numbers is not None else None,
    }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
