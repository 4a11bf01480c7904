"""Keys: who signed a pack, and whom this host trusts. ed25519 from the `cryptography` package, imported on first use.

A key is one line of text. A secret key lies in a file that only its owner reads; a public key can be given as text, or
as a file, or lies in the folder `trusted` of the user's or the host's configuration.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from kcachefs import config
from kcachefs.errors import PackUntrusted, UsageError

_PUBLIC, _SECRET = "kcachefs-ed25519:", "kcachefs-ed25519-secret:"
_KEY_BYTES = 32
_FILE_MAX = 4096
_KEYS_MAX = 1 << 20
"""The most bytes of a file of public keys, so that a large file named by mistake is not read whole."""


def keygen(path: Path) -> tuple[Path, str]:
    """Make a key at `path`, and its public part beside it; returns the path and the text of the public part."""
    ed25519 = _ed25519()
    secret = ed25519.Ed25519PrivateKey.generate()
    text = public_text(secret.public_key().public_bytes_raw())
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{path}: is there already, and is not replaced; name another file") from None
    with open(fd, "w") as file:
        file.write(_SECRET + base64.b64encode(secret.private_bytes_raw()).decode() + "\n")
    public = path.with_name(path.name + ".pub")
    public.write_text(text + "\n")
    return public, text


class Signer:
    """A secret key."""

    def __init__(self, path: Path) -> None:
        try:
            with open(path) as file:
                text = file.read(_FILE_MAX)
                if _decoded(text, _PUBLIC) is not None:
                    raise UsageError(f"{path}: is a public key; name the secret one, which signs")
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise UsageError(f"{path}: others may read this secret key; run: chmod 600 {path}")
        except (FileNotFoundError, UnicodeDecodeError):
            raise UsageError(f"{path}: holds no secret key; make one with: kcachefs fleet keygen {path}") from None
        raw = _decoded(text, _SECRET)
        if raw is None:
            raise UsageError(f"{path}: holds no secret key; make one with: kcachefs fleet keygen {path}")
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(raw)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        signature: bytes = self._key.sign(message)
        return signature


def check(public: bytes, signature: bytes, message: bytes) -> None:
    """Raise PackUntrusted unless the key made this signature."""
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise PackUntrusted("its signature is wrong: it was changed after it was signed") from None


def default_key() -> Path:
    """Where `kcachefs fleet keygen` puts a key, and `kcachefs pack` looks for one."""
    return config.config_folders()[0] / "fleet.key"


def trusted(given: Iterable[str] = ()) -> frozenset[bytes]:
    """The public keys that are trusted: those given as text or file, those in the folders, and the user's own."""
    keys = {_given(one) for one in given}
    own = default_key()
    files = [own.with_name(own.name + ".pub")]
    for folder in config.config_folders():
        if (folder / "trusted").is_dir():
            files += sorted((folder / "trusted").glob("*.pub"))
    for file in files:
        if file.exists() and _is_ours(file):
            keys |= set(_keys_in(file))
    return frozenset(keys)


def _is_ours(file: Path) -> bool:
    """Whether nobody but us and root decides what is in a file: under sudo, HOME may be another user's."""
    found = file.stat()
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def public_text(public: bytes) -> str:
    """A public key as people hand it around.

    >>> public_text(bytes(32))
    'kcachefs-ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA='
    """
    return _PUBLIC + base64.b64encode(public).decode()


def _given(text: str) -> bytes:
    raw = _decoded(text, _PUBLIC)
    if raw is not None:
        return raw
    if os.path.isfile(text):
        keys = _keys_in(Path(text))
        if len(keys) == 1:
            return keys[0]
    if text.startswith(_PUBLIC):
        raise UsageError(f"--trust {text}: is not a whole public key; give the one that kcachefs fleet keygen printed")
    raise UsageError(f"--trust {text}: is neither a public key ({_PUBLIC}…) nor a file that holds one")


def _keys_in(file: Path) -> list[bytes]:
    """The keys in a file, one per line; lines that begin with # are comments, in any encoding."""
    with open(file, "rb") as opened:
        raw_text = opened.read(_KEYS_MAX + 1)
    if len(raw_text) > _KEYS_MAX:
        raise UsageError(f"{file}: is too large for a file of public keys ({_PUBLIC}…)")
    text = raw_text.decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    keys = [raw for line in lines if (raw := _decoded(line, _PUBLIC)) is not None]
    if len(keys) < len(lines):
        raise UsageError(f"{file}: holds a line that is not a public key ({_PUBLIC}…)")
    return keys


def _decoded(text: str, prefix: str) -> bytes | None:
    words = text.split()
    if not words or not words[0].startswith(prefix):  # what follows the key is a comment
        return None
    try:
        raw = base64.b64decode(words[0].removeprefix(prefix), validate=True)
    except ValueError:  # includes binascii.Error, and the error for letters outside ASCII
        return None
    return raw if len(raw) == _KEY_BYTES else None


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError("signatures need the package cryptography: pip install 'kcachefs[fleet]'") from None
    return ed25519
