"""The seed of the arrivals goes from the configuration into every point."""

from __future__ import annotations

from pathlib import Path

from enginebay.cli.lab.study_points import build_url_points
from enginebay.config.loader import load_config


def test_arrivals_take_their_own_seed(tmp_path: Path) -> None:
    file = tmp_path / "bay.yaml"
    traffic = "traffic_simulation: {enabled: true, target_qps: 2, seed: %s}\nrandom_seed: 7\n"

    def seeds(seed: str) -> dict[str, int]:
        file.write_text(traffic % seed)
        (point,) = build_url_points(load_config(file, environ={}), "http://127.0.0.1:1", "m", None)
        return point.derive_seeds(1)

    assert seeds("40") == {"requests": 8, "arrivals": 41}
    assert seeds("null") == {"requests": 8, "arrivals": 8}
