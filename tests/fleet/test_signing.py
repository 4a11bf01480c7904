"""Keys: made once, kept secret, and trusted by text, by file or by folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kcachefs.errors import UsageError
from kcachefs.fleet import signing
from tests.fleet.caches import fill, key, packed
from tests.frameworks.commands import kcachefs


def test_a_secret_key_is_the_users_alone_and_is_never_replaced(tmp_path: Path) -> None:
    said = kcachefs("fleet", "keygen", tmp_path / "key").stdout
    public = (tmp_path / "key.pub").read_text().strip()
    assert f"--trust {public}" in said
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    secret = (tmp_path / "key").read_bytes()
    assert public.partition(":")[2] not in secret.decode()
    again = kcachefs("fleet", "keygen", tmp_path / "key", check=False)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert (tmp_path / "key").read_bytes() == secret


def test_a_secret_key_that_others_can_read_signs_nothing(tmp_path: Path) -> None:
    secret, _ = key(tmp_path)
    secret.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        signing.Signer(secret)


def test_a_public_key_that_is_named_instead_of_the_secret_one_is_called_so(tmp_path: Path) -> None:
    secret, _ = key(tmp_path)
    with pytest.raises(UsageError, match="is a public key; name the secret one"):
        signing.Signer(secret.with_name(f"{secret.name}.pub"))


@pytest.mark.parametrize("content", ["", "nonsense", "kcachefs-ed25519-secret:AAAA", "kcachefs-ed25519-secret:*"])
def test_what_is_no_secret_key_signs_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(UsageError, match="holds no secret key"):
        signing.Signer(tmp_path / "key")


def test_keys_are_trusted_by_text_by_file_and_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "kcachefs" / "trusted"
    folder.mkdir(parents=True)
    keys = [key(tmp_path, f"{number}") for number in range(5)]
    publics = [signing.Signer(secret).public for secret, _ in keys]
    (folder / "ci.pub").write_text(f"# the runners\n{keys[2][1]} the old one\n\n{keys[3][1]}\n")
    (folder / "ignored.txt").write_text(keys[4][1])
    assert signing.trusted([keys[0][1], str(tmp_path / "1.pub")]) == frozenset(publics[:4])
    (folder / "ci.pub").chmod(0o666)
    assert signing.trusted() == frozenset(), "anybody could add a key"
    (folder / "ci.pub").chmod(0o644)
    (folder / "broken.pub").write_text("nonsense")
    with pytest.raises(UsageError, match=r"broken\.pub: holds a line that is no public key"):
        signing.trusted()


def test_the_users_own_key_signs_and_is_trusted_without_being_named(tmp_path: Path) -> None:
    fill(tmp_path / "caches")
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    kcachefs("fleet", "keygen", env=environment)
    secret = tmp_path / "config" / "kcachefs" / "fleet.key"
    packed(tmp_path / "caches", tmp_path / "all.kcp", secret)
    assert "which is trusted" in kcachefs("pack", "verify", tmp_path / "all.kcp", env=environment).stdout
    assert kcachefs("pack", "verify", tmp_path / "all.kcp", check=False).returncode == 6
    assert sorted(os.listdir(secret.parent)) == ["fleet.key", "fleet.key.pub"]


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, _ = key(tmp_path)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    for use in (lambda: signing.Signer(secret), lambda: signing.check(bytes(32), bytes(64), b"")):
        with pytest.raises(UsageError, match=r"pip install 'kcachefs\[fleet\]'"):
            use()
