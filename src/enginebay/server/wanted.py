"""What is to be served, as the configuration and the command line say."""

from __future__ import annotations

from dataclasses import dataclass

from enginebay.config.model import Config
from enginebay.fleet.variants import Variant
from enginebay.server.keys import Keyring


@dataclass(frozen=True, slots=True)
class Wanted:
    config: Config
    variants: tuple[Variant, ...]
    keyring: Keyring
