"""Runs programs that need torch, Triton, numba or cuda.core, each in a process of its own, importing none for each.

To import torch and its compiler takes several times as long as most programs that the tests run with it, and so does
hashing Triton, which it does once in a process. A server does both once in a whole run of the tests, whichever of its
processes (`-n`) comes first, and forks for every program. A
program has its own arguments, environment, output and session, and compiles nothing before it begins: what torch keeps
in memory about graphs and caches is as empty as in a new process.

A process that becomes another user, or enters a mount namespace, can have such a program too: it calls `reach` before.
A container can have one that was started from outside, as `runc exec` does it: `inside`. Tests of what a new Python
does start it themselves.

`Program` below is the client; `python -m tests.forked_programs` is the server. It ends with the last of the processes
that used it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from kcachefs import libc
from tests.forked_daemons import run_and_exit

ROOT = Path(__file__).parents[1]
TORCH = (
    *("torch", "torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codecache"),
    *("torch._inductor.cpp_builder", "torch._inductor.codegen.cpp", "torch._inductor.codegen.cpp_wrapper_cpu"),
    *("torch._inductor.fx_passes.joint_graph", "torch._inductor.fx_passes.post_grad"),
    *("torch.utils.cpp_extension", "triton", "triton.backends.nvidia.compiler"),
)
OTHERS = ("numba", "cuda.core", "cuda.core.utils")
PREPARED = {"torch": TORCH, "others": OTHERS}
"""What each server imports. A program of torch is not to find numba imported."""

AS_IMPORTED = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""What torch sees when the server imports it. `_read_variables_again` is for programs that have it otherwise."""

HASH_SEED = str(2 + int(os.environ.get("KCACHEFS_SEED", "75")) % (2**32 - 2))
"""Of the server and of all its programs; neither of those that tests choose for processes of their own."""

_ADDRESS = f"\0kcachefs-tests-{os.getuid()}-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
"""A name and no file: only one process can bind it, and it goes with the server."""
_MESSAGE_BYTES = 1 << 17
_EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWPID = 0x20000, 0x4000000, 0x8000000, 0x20000000
_ALL_OF_A_CONTAINER = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_leases: dict[str, socket.socket] = {}
_reached: socket.socket | None = None


def _who_and_where() -> tuple[int, int]:
    return os.geteuid(), os.stat("/proc/self/ns/mnt").st_ino


_OURS = _who_and_where()


def can_fork() -> bool:
    """Whether a process of the server would be as one of this process, which may have become another user."""
    return _who_and_where() == _OURS or _reached is not None


def reach() -> None:
    """Connect for one program of the user that this process becomes, in the mount namespace that it enters."""
    global _reached
    _reached = _connected("torch")


class Program(subprocess.Popen[str]):
    """`python FILE ARGUMENTS`, forked. It leads a session of its own."""

    def __init__(
        self,
        file: Path,
        *arguments: str,
        env: Mapping[str, str],
        stdin: int | None = subprocess.DEVNULL,
        prepared: str = "torch",
        inside: tuple[int, int] | None = None,
    ) -> None:
        """`inside`: the first process of a container, and the program's user there."""
        self._prepared, self._inside = prepared, inside
        super().__init__(
            [sys.executable, str(file), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )

    def _request(self, words: list[str], environment: dict[str, str]) -> tuple[socket.socket, dict[str, Any]]:
        """A connection, and what to send there."""
        global _reached
        request: dict[str, Any] = {"words": words[1:], "environment": environment, "folder": os.getcwd()}
        if _reached is not None:
            request["beside"] = [os.getpid(), os.getuid(), os.getgid(), os.getgroups()]
        if self._inside is not None:
            request |= {"inside": self._inside, "folder": "/"}
        connection, _reached = _reached or _connected(self._prepared), None
        return connection, request

    def _execute_child(self, *given: Any) -> None:
        wanted = _EXECUTE.bind(self, *given).arguments
        self._connection, request = self._request(wanted["args"], dict(wanted["env"]))
        ends = [wanted[end] if wanted[end] >= 0 else at for at, end in enumerate(("p2cread", "c2pwrite", "errwrite"))]
        socket.send_fds(self._connection, [json.dumps(request).encode()], ends)
        self.pid = int(self._connection.recv(_MESSAGE_BYTES))
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(wanted[name] for name in names))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """As waitpid would answer: it is the server's child, and the server tells."""
        if not select.select([self._connection], [], [], 0 if flags & os.WNOHANG else None)[0]:
            return 0, 0
        with self._connection:
            return self.pid, int(self._connection.recv(_MESSAGE_BYTES))

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode

    def finish(self, timeout: float) -> str:
        """What it printed, if it ended well."""
        with self:
            said, errors = self.communicate(timeout=timeout)
        assert self.returncode == 0, errors
        return said

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for it, but not for one that was given up."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


def keep(prepared: str = "torch") -> None:
    """Have the server last as long as this process: it ends with its last connection."""
    if prepared not in _leases:
        _leases[prepared] = _connect_or_start(prepared)
        atexit.register(_leases[prepared].close)


def _connected(prepared: str) -> socket.socket:
    keep(prepared)
    return _connect_or_start(prepared)


def _connect_or_start(prepared: str) -> socket.socket:
    address = f"{_ADDRESS}-{prepared}"
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(ConnectionRefusedError):
            connection.connect(address)
            return connection
        connection.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.suppress(OSError):
            listener.bind(address)
            listener.listen(64)
            listener.set_inheritable(True)
            command = [sys.executable, "-m", "tests.forked_programs", str(listener.fileno()), prepared]
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            # No Popen, which wants to be waited for: the server may outlive this process.
            environment = {**os.environ, **AS_IMPORTED, "PYTHONPATH": path, "PYTHONHASHSEED": HASH_SEED}
            os.posix_spawn(sys.executable, command, environment, setsid=True)


# --- the server -------------------------------------------------------------------------------------------------------


def serve(listener: socket.socket, prepared: str) -> None:
    """Accept requests until the last connection has ended."""
    with tempfile.TemporaryDirectory() as folder:  # torch makes a folder for its caches when it is imported
        tempfile.tempdir = folder
        _prepare(PREPARED[prepared])
    tempfile.tempdir = None
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    os.chdir("/")
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    idle: set[socket.socket] = set()
    running = 0
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                if _is_ours(connection):
                    idle.add(connection)
                    selector.register(connection, selectors.EVENT_READ, None)
            elif key.fileobj in idle:
                connection = key.fileobj
                idle.remove(connection)
                selector.unregister(connection)
                if (pid := _start(connection, [listener, *idle])) is not None:
                    running += 1
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
            else:
                selector.unregister(key.fd)
                os.close(key.fd)
                running -= 1
                _finish(*key.data)
        if not (idle or running or select.select([listener], [], [], 0)[0]):
            return


def _is_ours(connection: socket.socket) -> bool:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", told)[1] == os.getuid():
        return True
    connection.close()
    return False


def _prepare(names: Sequence[str]) -> None:
    """Import everything, and have done what depends neither on a program nor on where its caches are."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" in sys.modules:
        _prepare_torch()
    if "numba" in sys.modules:
        importlib.import_module("numba").njit(lambda x: x + 1)(1)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page


def _prepare_torch() -> None:
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor.codecache import CacheBase, torch_key

    torch_key()
    CacheBase.get_system()
    torch.compile(lambda x: x * 2 + 1, backend="aot_eager")(torch.ones(2))
    torch._dynamo.reset()
    counters.clear()


def _start(connection: socket.socket, held: list[socket.socket]) -> int | None:
    message, ends, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
    if not message:
        connection.close()
        return None
    pid = os.fork()
    if pid == 0:
        for one in (connection, *held):
            one.close()
        run_and_exit(lambda: _become(json.loads(message), ends))
    for end in ends:
        os.close(end)
    connection.send(str(pid).encode())
    return pid


def _finish(pid: int, connection: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(str(status).encode())


def _become(request: dict[str, Any], ends: list[int]) -> None:
    """Be the program until it ends."""
    os.setsid()
    for standard, end in enumerate(ends):
        os.dup2(end, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if "beside" in request:
        _go_beside(*request["beside"])
    if "inside" in request:
        _go_inside(*request["inside"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    if "torch" in sys.modules:
        _read_variables_again()
    if "numba" in sys.modules:
        importlib.import_module("numba.core.config").reload_config()
    file, *arguments = request["words"]
    sys.argv = [file, *arguments]
    sys.path.insert(0, os.path.dirname(file))
    run_as_main(Path(file).read_bytes(), file)


def run_as_main(code: str | bytes, file: str) -> None:
    """Run it as Python would, to what it does at its end."""
    main = ModuleType("__main__")
    main.__file__ = file
    sys.modules["__main__"] = main
    try:
        exec(compile(code, file, "exec"), vars(main))
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        raise
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _go_beside(pid: int, uid: int, gid: int, groups: list[int]) -> None:
    """Be that user in the mount namespace of that process."""
    with open(f"/proc/{pid}/ns/mnt", "rb") as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), _CLONE_NEWNS) == 0
    _be_user(uid, gid, groups)


def _go_inside(pid: int, user: int) -> None:
    """Be that user in the container whose first process has that pid: in a child, which has a pid there."""
    namespaces = os.pidfd_open(pid)
    assert ctypes.CDLL(None).setns(namespaces, _ALL_OF_A_CONTAINER) == 0
    os.close(namespaces)
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
    _be_user(user, user, [])
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _be_user(uid: int, gid: int, groups: list[int]) -> None:
    """And be one that may look at itself, as a new program may."""
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
    libc.prctl(_PR_SET_DUMPABLE, 1)


def _read_variables_again() -> None:
    """What torch computed from the environment when it was imported."""
    from torch._inductor import codecache, config
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    codecache._HEADER_DIR = os.path.join(default_cache_dir(), "precompiled_headers")
    codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")
    config.compile_threads = config.decide_compile_threads()
    config.cpp.vec_isa_ok = config.vec_isa_ok_default()
    config.cpp_cache_precompile_headers = os.environ.get("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS") != "0"


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as socket_of_server:
        serve(socket_of_server, sys.argv[2])
    os._exit(0)  # at the end of Python, Triton complains that it is still in use
