"""A meter without devices."""

from __future__ import annotations

from enginebay.meters.sample import Sample


class NullMeter:
    name = "null"

    def read(self) -> list[Sample]:
        return []

    def close(self) -> None:
        pass
