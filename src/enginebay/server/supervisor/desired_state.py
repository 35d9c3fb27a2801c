"""What to serve, as the configuration and the command line define it."""

from __future__ import annotations

from dataclasses import dataclass

from enginebay.config.resolved_config import Config
from enginebay.fleet.routing.variants import Variant
from enginebay.server.auth.api_keys import Keyring


@dataclass(frozen=True, slots=True)
class DesiredState:
    config: Config
    variants: tuple[Variant, ...]
    keyring: Keyring
