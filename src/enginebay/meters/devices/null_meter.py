"""A meter that reads nothing, for where nothing is to be measured."""

from __future__ import annotations

from enginebay.meters.sample import Sample


class NullMeter:
    name = "null"

    def read(self) -> list[Sample]:
        return []

    def close(self) -> None:
        pass
