from __future__ import annotations

import pytest

from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.auth.client_identity import identify_client
from enginebay.server.sessions.admission_queue import QueueClient


def test_a_key_is_a_client_from_wherever_it_comes() -> None:
    key = ApiKey("team", b"", weight=3, max_running=2)
    assert identify_client(key, "192.0.2.1:5") == identify_client(key, "local") == QueueClient("team", 3, 2)


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("192.0.2.1:5000", "192.0.2.1"),
        ("192.0.2.1:6000", "192.0.2.1"),
        ("::ffff:192.0.2.1:5000", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6:5000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:4:5:6:5000", "2001:db8:1:2::/64"),
        ("::1:5000", "::/64"),
        ("fe80::1%eth0:5000", "fe80::/64"),
        ("local", "local"),
    ],
)
def test_without_keys_an_address_is_a_client(peer: str, name: str) -> None:
    assert identify_client(None, peer) == QueueClient(name)
