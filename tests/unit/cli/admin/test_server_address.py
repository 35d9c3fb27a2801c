"""Server resolution: --url, environment, configuration, default port."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.admin.server_address import DEFAULT_URL, START_HINT, build_url, resolve_server
from enginebay.cli.main import main
from enginebay.errors import UsageError


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Isolate the test from other configurations."""
    for name in ("ENGINEBAY_CONFIG", "ENGINEBAY_URL", "ENGINEBAY_SERVER_HOST", "ENGINEBAY_SERVER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configure(folder: Path, text: str) -> None:
    (folder / "enginebay.yaml").write_text(text)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://host:1/v1/", "http://host:1"),
        ("host:1", "http://host:1"),
        ("https://host/prefix", "https://host/prefix"),
    ],
)
def test_the_address_is_found(given: str, address: str) -> None:
    assert resolve_server(given).url == address


@pytest.mark.parametrize("given", ["file:///etc/passwd", "http://", "ftp://host", ""])
def test_an_invalid_url_is_rejected(given: str) -> None:
    with pytest.raises(UsageError):
        resolve_server(given)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:7"),
        ("0.0.0.0", "http://127.0.0.1:7"),
        ("::", "http://[::1]:7"),
        ("fd00::1", "http://[fd00::1]:7"),
    ],
)
def test_url_of_a_listening_address(host: str, address: str) -> None:
    assert build_url(ip_address(host), 7) == address


def test_without_a_configuration_it_is_the_default() -> None:
    assert resolve_server(None).url == DEFAULT_URL and resolve_server(None).hint == START_HINT


def test_the_address_comes_from_the_configuration(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(alone, "server: {host: 0.0.0.0, port: 8123}\n")
    assert resolve_server(None).url == "http://127.0.0.1:8123"
    monkeypatch.setenv("ENGINEBAY_SERVER_PORT", "8124")
    assert resolve_server(None).url == "http://127.0.0.1:8124"
    assert resolve_server("http://127.0.0.1:9").url == "http://127.0.0.1:9"


def test_an_untrusted_file_is_named_with_its_address(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(alone, "server: {port: 8123}\n")
    assert resolve_server(None).untrusted_file == "enginebay.yaml"
    monkeypatch.setenv("ENGINEBAY_SERVER_PORT", "8124")
    assert not resolve_server(None).untrusted_file
    monkeypatch.delenv("ENGINEBAY_SERVER_PORT")
    configure(alone, "server: {port: 8000, host: 127.0.0.1}\n")
    assert not resolve_server(None).untrusted_file  # the default


def test_port_zero_falls_back_to_the_default(alone: Path) -> None:
    configure(alone, "server: {port: 0}\n")
    assert resolve_server(None).url == DEFAULT_URL


@pytest.mark.parametrize("text", ["server: {port: 8123", "server: {port: many}\n", "- a list\n"])
def test_an_unreadable_configuration_is_in_the_hint(alone: Path, text: str) -> None:
    configure(alone, text)
    found = resolve_server(None)
    assert found.url == DEFAULT_URL
    assert found.hint.startswith(START_HINT) and "bay config validate" in found.hint


def test_unrelated_problems_keep_the_port(alone: Path) -> None:
    configure(alone, "server: {port: 8123}\nnonsense: 1\n")
    assert resolve_server(None).url == "http://127.0.0.1:8123"


def test_a_missing_configuration_is_no_failure(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_CONFIG", str(alone / "gone.yaml"))
    found = resolve_server(None)
    assert found.url == DEFAULT_URL and "gone.yaml" in found.hint


def test_a_file_sends_no_key_to_another_host(alone: Path) -> None:
    configure(alone, "server: {host: 192.0.2.1, port: 8123}\n")  # an address that no host has
    found = resolve_server(None)
    assert found.url == DEFAULT_URL and "192.0.2.1" in found.hint


def _resolved(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found: list[Any] = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (one, 9)) for one in addresses]
    monkeypatch.setattr("enginebay.cli.admin.server_address.socket.getaddrinfo", lambda *_, **__: found)


def test_a_name_uses_the_address_that_was_checked(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may also resolve to another host's address."""
    configure(alone, "server: {host: name.example, port: 8123}\n")
    _resolved(monkeypatch, "127.0.0.2", "192.0.2.1")
    assert resolve_server(None).url == "http://127.0.0.2:8123"
    _resolved(monkeypatch, "192.0.2.1", "127.0.0.2")
    assert resolve_server(None).url == DEFAULT_URL


@pytest.mark.parametrize(("lax", "asked"), [(False, "http://192.0.2.1:8123"), (True, DEFAULT_URL)])
def test_a_second_address_of_an_interface_is_of_this_host(
    alone: Path, monkeypatch: pytest.MonkeyPatch, lax: bool, asked: str
) -> None:
    """A secondary address is not the source address; with nonlocal bind, binding proves nothing."""

    class Probe(socket.socket):
        def connect(self, address: Any) -> None: ...

        def getsockname(self) -> Any:
            return ("192.0.2.9", 1)

        def bind(self, address: Any) -> None: ...

    configure(alone, "server: {host: 192.0.2.1, port: 8123}\n")
    monkeypatch.setattr("enginebay.cli.admin.server_address.socket.socket", Probe)
    monkeypatch.setattr("enginebay.cli.admin.server_address._can_bind_nonlocal", lambda: lax)
    assert resolve_server(None).url == asked


def test_no_proxy_for_the_configured_server(alone: Path) -> None:
    configure(alone, "server: {host: 127.0.0.2, port: 8123}\n")
    assert resolve_server(None).is_local
    assert resolve_server("http://localhost:8123").is_local and resolve_server("127.0.0.3:8123").is_local
    assert not resolve_server("http://host:8123").is_local and not resolve_server("http://192.0.2.1:8123").is_local


@pytest.mark.parametrize(
    "command",
    [
        "ps", "top --once", "load m", "sleep m", "unload m", "switch a b", "switches", "logs m", "reload",
        "adapters remove m n",
    ],
)  # fmt: skip
def test_every_command_uses_the_configured_address(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    configure(alone, "server: {port: 1}\n")
    main(command.split())
    assert "no server responds at http://127.0.0.1:1:" in capsys.readouterr().err
    monkeypatch.setenv("ENGINEBAY_URL", "http://127.0.0.1:2")
    main(command.split())
    assert "no server responds at http://127.0.0.1:2:" in capsys.readouterr().err


def test_the_help_names_the_source_of_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "default: server.host and server.port from the configuration" in said
