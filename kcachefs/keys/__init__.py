"""Keys that never serve the wrong kernel and do not depend on the machine.

Each kind of key is a digest of a canonical encoding under a context of its own with a schema version, so two different
inputs never get the same key: not in one kind, not across kinds, not after the encoding changes.
"""

from kcachefs.keys.cache_key import CacheKey, Dim, InputSpec
from kcachefs.keys.declared import env, file, hash_depends, version
from kcachefs.keys.devices import DeviceClass
from kcachefs.keys.encoding import SCHEMA
from kcachefs.keys.functions import hash_function, hash_value
from kcachefs.keys.programs import program_key
from kcachefs.keys.projects import project_fingerprint
from kcachefs.keys.tensors import TensorSpec, hash_tensor_signature

__all__ = [
    "SCHEMA",
    "CacheKey",
    "DeviceClass",
    "Dim",
    "InputSpec",
    "TensorSpec",
    "env",
    "file",
    "hash_depends",
    "hash_function",
    "hash_tensor_signature",
    "hash_value",
    "program_key",
    "project_fingerprint",
    "version",
]
