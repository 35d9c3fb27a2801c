from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginebay.cli.main import main
from enginebay.server.auth.api_keys import Keyring


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ENGINEBAY_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def bay(capsys, *args: str) -> tuple[int, str, str]:
    code = main(["keys", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_keys_life(capsys, home):
    code, out, err = bay(capsys, "create", "team", "--requests-per-minute", "5", "--tokens-per-minute", "7")
    text = out.removesuffix("\n")
    assert code == 0 and "not shown again" in err and text not in err
    found = Keyring.load(home / "keys.yaml", {}).find(text)
    assert found and (found.requests_per_minute, found.tokens_per_minute) == (5, 7)
    assert bay(capsys, "create", "ops", "--admin")[0] == 0
    listed = json.loads(bay(capsys, "list", "--json")[1])
    assert [(one["name"], one["scopes"]) for one in listed] == [
        ("team", ["inference"]),
        ("ops", ["inference", "admin"]),
    ]
    shown = bay(capsys, "list")[1]
    assert "team" in shown and listed[0]["id"] in shown and text not in shown
    code, out, err = bay(capsys, "revoke", "team")
    assert (code, out) == (0, "") and err.startswith(f"team ({listed[0]['id']}) is revoked; ")
    assert "until `bay reload` or SIGHUP" in err
    assert bay(capsys, "revoke", listed[1]["id"])[0] == 0
    assert json.loads(bay(capsys, "list", "--json")[1]) == []
    assert "no keys in" in bay(capsys, "list")[2]


def test_the_share_of_a_key(capsys, home):
    code, out, _ = bay(capsys, "create", "team", "--weight", "3", "--max-running", "2")
    found = Keyring.load(home / "keys.yaml", {}).find(out.strip())
    assert code == 0 and found and (found.weight, found.max_running) == (3, 2)
    assert bay(capsys, "create", "other")[0] == 0
    listed = json.loads(bay(capsys, "list", "--json")[1])
    assert [(one["weight"], one["max_running"]) for one in listed] == [(3, 2), (1, None)]
    assert (home / "keys.yaml").read_text().count("weight") == 1, "earlier versions read a file without it"
    assert bay(capsys, "create", "none", "--weight", "0")[0] == 2


def test_create_as_json(capsys, home):
    created = json.loads(bay(capsys, "create", "team", "--json")[1])
    assert Keyring.load(None, {}).find(created["key"])
    assert "hash" not in created


def test_the_file_is_the_configs_unless_named(capsys, tmp_path):
    Path("enginebay.yaml").write_text("server: {keys_file: conf/k.yaml}\n")
    assert bay(capsys, "create", "one")[0] == 0
    assert bay(capsys, "create", "two", "--file", "other.yaml")[0] == 0
    assert (tmp_path / "conf/k.yaml").is_file() and (tmp_path / "other.yaml").is_file()
    assert [one["name"] for one in json.loads(bay(capsys, "list", "--json", "--file", "other.yaml")[1])] == ["two"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("create", "a b"), "bay: invalid key name 'a b'"),
        (("create", "x", "--requests-per-minute", "0"), "--requests-per-minute"),
        (("revoke", "nobody"), "bay: no key 'nobody'"),
    ],
)
def test_mistakes_are_bad_usage(capsys, args, said):
    code, out, err = bay(capsys, *args)
    assert (code, out) == (2, "") and said in err and "Traceback" not in err
