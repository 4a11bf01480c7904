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
    with pytest.raises(UsageError, match=r"broken\.pub: holds a line that is not a public key"):
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


def test_a_key_that_is_cut_off_is_told_in_one_line_by_every_command(tmp_path: Path) -> None:
    """The pages abbreviate keys with an ellipsis, and people paste what they read."""
    fill(tmp_path / "caches", size=100)
    secret, _ = key(tmp_path)
    packed(tmp_path / "caches", tmp_path / "all.kcp", secret)
    fleet = ("--fleet", f"file://{tmp_path}", "--fleet-key", secret)
    for words in (
        ("unpack", tmp_path / "all.kcp", "--store", tmp_path / "store"),
        ("pack", "verify", tmp_path / "all.kcp"),
        ("mount", tmp_path / "mount", "--store", tmp_path / "store", *fleet[:2]),
        ("mount", tmp_path / "mount", "--store", tmp_path / "store", *fleet, "--fleet-mode", "publish"),
    ):
        done = kcachefs(*words, "--trust", "kcachefs-ed25519:…", check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "is not a whole public key" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_key_that_is_cut_off_in_the_configuration_is_a_finding_of_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "config" / "kcachefs").mkdir(parents=True)
    text = f'fleet = "file://{tmp_path}"\ntrust = ["kcachefs-ed25519:…"]\n'
    (tmp_path / "config" / "kcachefs" / "config.toml").write_text(text)
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    done = kcachefs("doctor", "--store", tmp_path / "store", env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "configuration: --trust kcachefs-ed25519:…: is not a whole public key" in done.stdout


def test_a_file_of_keys_is_bytes_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    secret, text = key(tmp_path)
    folder = tmp_path / "config" / "kcachefs" / "trusted"
    folder.mkdir(parents=True)
    (folder / "ci.pub").write_bytes(f"# Müller\n{text} Jörg's\n".encode("latin-1"))
    assert signing.trusted() == {signing.Signer(secret).public}, "a comment is nobody's business"
    for content in (b"\x89KCPACK\n\xff\xfe", f"{text[:-1]}ü\n".encode("latin-1"), text.encode() * (1 << 15)):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(UsageError, match="/other: "):
            signing.trusted([str(tmp_path / "other")])
        (folder / "ci.pub").write_bytes(content)
        with pytest.raises(UsageError, match=r"ci\.pub: "):
            signing.trusted()
