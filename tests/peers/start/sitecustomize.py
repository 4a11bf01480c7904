"""Puts kcachefs in the place of a peer's cache in every process of a run of its tests: see scripts/peer_suites.py.

Python imports a module of this name when it starts, where the folder is on PYTHONPATH: so also in the processes that
the peer's tests start.
"""

import os

if os.environ.get("KCACHEFS_PEER") == "cuda.core":
    from tests.peers import cuda_core

    cuda_core.install()
elif os.environ.get("KCACHEFS_PEER") == "triton":
    from tests.peers import triton_manager

    triton_manager.install()
