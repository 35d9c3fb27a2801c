"""Key files and environment variables: storage, validation, and constant-time lookup."""

from __future__ import annotations

import multiprocessing
import os
import re
import stat
import time
from pathlib import Path

import pytest

from enginebay.errors import ConfigError, UsageError
from enginebay.server.auth import api_keys
from enginebay.server.auth.api_keys import ApiKey, Keyring, create_key, hash_key, list_keys, revoke_key

HASH = "sha256:" + "0" * 64
LONG = "0123456789abcdef"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))


def test_a_created_key_is_found_and_nothing_else_is(file: Path) -> None:
    text, created = create_key(file, "team", requests_per_minute=5, tokens_per_minute=1000)
    assert re.fullmatch(r"bay-[0-9a-f]{8}-[A-Za-z0-9_-]{43}", text)
    assert text.split("-")[1] == created.id
    keyring = Keyring.load(file, {})
    assert keyring.find(text) == created.key == ApiKey("team", hash_key(text), frozenset({"inference"}), 5, 1000)
    for wrong in ("", text[:-1], text + " ", text.upper(), created.key.digest.hex(), "\udc80", "é" * 40):
        assert keyring.find(wrong) is None


def test_the_secret_is_nowhere_on_disk(file: Path) -> None:
    text, created = create_key(file, "team")
    assert created.id in file.read_text()
    for path in file.parent.iterdir():
        assert text.split("-", 2)[2] not in path.read_text()


def test_only_the_owner_reads_the_file(file: Path) -> None:
    create_key(file, "team")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Keyring.load(file, {}).warnings == ()
    file.chmod(0o640)
    assert Keyring.load(file, {}).warnings == (f"{file} is accessible to other users; run: chmod 600 {file}",)
    create_key(file, "more")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_create_list_revoke(file: Path) -> None:
    text, first = create_key(file, "one")
    _, second = create_key(file, "two", admin=True)
    assert list_keys(file) == [first, second]
    assert second.key.scopes == {"inference", "admin"}
    assert second.to_json()["scopes"] == ["inference", "admin"]
    assert revoke_key(file, "one") == first
    assert Keyring.load(file, {}).find(text) is None
    assert revoke_key(file, second.id) == second
    assert list_keys(file) == [] and not Keyring.load(file, {})


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "keys.yaml"
    link.symlink_to(tmp_path / "real" / "k.yaml")
    create_key(link, "team")
    assert link.is_symlink() and len(list_keys(link)) == 1


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "a\n", "é", "0123abcd"])
def test_names_that_are_refused(file: Path, name: str) -> None:
    with pytest.raises(UsageError, match="invalid key name"):
        create_key(file, name)
    assert not file.exists()


def test_one_name_one_key(file: Path) -> None:
    create_key(file, "team")
    before = file.read_bytes()
    with pytest.raises(UsageError, match="already"):
        create_key(file, "team")
    with pytest.raises(UsageError) as error:
        revoke_key(file, "taem")
    assert error.value.hint == "did you mean team?"
    assert file.read_bytes() == before


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_key(file, "team")
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        create_key(file, "more")
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir()) == [".keys.yaml.lock", "keys.yaml"]


def _create_some(file: Path, who: int) -> None:
    for number in range(5):
        create_key(file, f"k{who}-{number}")


def test_processes_do_not_lose_each_others_keys(file: Path) -> None:
    fresh = multiprocessing.get_context("spawn")
    processes = [fresh.Process(target=_create_some, args=(file, who)) for who in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list_keys(file)) == 10


# --- variables


def test_variables_hold_keys_too(file: Path) -> None:
    environ = {"ENGINEBAY_API_KEY": f"{LONG}-a, {LONG}-b,,", "ENGINEBAY_ADMIN_KEY": f"{LONG}-root\n"}
    keyring = Keyring.load(None, environ)
    first, second, root = (keyring.find(f"{LONG}-{name}") for name in ("a", "b", "root"))
    assert first and second and root
    assert (first.name, second.name) == ("env:ENGINEBAY_API_KEY", "env:ENGINEBAY_API_KEY:2")
    assert first.scopes == {"inference"} and root.scopes == {"inference", "admin"}
    assert first.requests_per_minute is None
    assert keyring.find(f"{LONG}-a, {LONG}-b,,") is None and keyring.find("") is None


def test_a_key_configured_twice_has_the_scopes_of_both(file: Path) -> None:
    for environ in (
        {"ENGINEBAY_API_KEY": LONG, "ENGINEBAY_ADMIN_KEY": LONG},
        {"ENGINEBAY_ADMIN_KEY": LONG, "ENGINEBAY_API_KEY": LONG},
    ):
        found = Keyring.load(None, environ).find(LONG)
        assert found and found.scopes == {"inference", "admin"}


@pytest.mark.parametrize(
    ("text", "said"), [(LONG[1:], "15 characters long, at least 16"), (LONG + " é", "HTTP header")]
)
@pytest.mark.parametrize("variable", ["ENGINEBAY_API_KEY", "ENGINEBAY_ADMIN_KEY"])
def test_bad_variables_are_refused_without_showing_them(variable: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        Keyring.load(None, {variable: text})
    assert error.value.message.startswith(variable) and text not in str(error.value)


# --- the keyring


def test_no_keys_at_all(file: Path) -> None:
    assert not Keyring.load(None, {})
    assert Keyring().find("anything") is None
    with pytest.raises(ConfigError, match="key file not found"):
        Keyring.load(file, {})
    file.write_text("# nothing yet\n")
    file.chmod(0o600)
    assert not Keyring.load(file, {})


def test_the_default_file_is_in_the_home() -> None:
    text, _ = create_key(api_keys.default_key_file(), "team")
    assert Keyring.load(None, {}).find(text)


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring([ApiKey(str(number), hash_key(str(number))) for number in range(8)])
    compared: list[bytes] = []

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr(api_keys.hmac, "compare_digest", counting)
    for presented in ("0", "3", "7", "none"):
        compared.clear()
        ring.find(presented)
        assert len(compared) == 8


def test_finding_takes_microseconds() -> None:
    ring = Keyring([ApiKey(str(number), hash_key(str(number))) for number in range(5)])
    began = time.process_time()
    for _ in range(2000):
        ring.find("bay-00000000-" + "x" * 43)
    assert (time.process_time() - began) / 2000 < 100e-6


# --- files edited by hand


ENTRY = f"- id: 0123abcd\n  name: a\n  hash: {HASH}\n"


def test_optional_fields_and_values_that_look_like_numbers(file: Path) -> None:
    file.write_text(f"- {{id: 12345678, name: 007, hash: '{HASH}', created: 2026-01-01, tokens_per_minute: null}}\n")
    (found,) = list_keys(file)
    assert (found.id, found.key.name, found.created) == ("12345678", "007", "2026-01-01")
    assert found.key == ApiKey("007", bytes(32))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("keys: []", "1: expected a list of keys"),
        ("- just text", "1: expected a key with id, name and hash"),
        (ENTRY + "- name: b\n", "4: hash is missing"),
        (ENTRY.replace("0123abcd", "xyz"), "1: id does not match"),
        (ENTRY.replace(HASH, "plain-secret"), "3: hash does not match"),
        (ENTRY.replace("name: a", "name: [a]"), "2: name does not match"),
        (ENTRY + "  scope: []\n", "4: unknown field 'scope'; did you mean scopes?"),
        (ENTRY + "  scopes: [root]\n", "4: scopes must be a list of inference and admin"),
        (ENTRY + "  scopes: [{a: b}]\n", "4: scopes must be a list"),
        (ENTRY + "  scopes: []\n", "4: scopes must be a list"),
        (ENTRY + "  scopes: admin\n", "4: scopes must be a list"),
        (ENTRY + "  requests_per_minute: 0\n", "4: requests_per_minute must be a positive integer"),
        (ENTRY + "  tokens_per_minute: [1]\n", "4: tokens_per_minute must be a positive integer"),
        (ENTRY + ENTRY, "4: duplicate key a (0123abcd)"),
        ("- {a", "1: not valid YAML"),
        ("- &a\n  <<: *a\n", ": "),
        ("\x00", ": not valid YAML"),
        ("[" * 1500, ": nested too deeply"),
        ("- ? [a]\n  : b\n", ": "),
    ],
)
def test_errors_name_their_line(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        Keyring.load(file, {})
    assert error.value.message.startswith(f"{file}") and expected in error.value.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the key file .*: Is a directory"):
        Keyring.load(tmp_path, {})
    huge = tmp_path / "huge"
    huge.write_bytes(b"#" * (api_keys.MAX_KEY_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="exceeds 1 MiB"):
        Keyring.load(huge, {})
