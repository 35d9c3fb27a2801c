"""An administrator adds adapters that cannot be loaded: each is refused, and nobody else notices."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.broken_adapters import make_broken_adapters
from tests.hostile.hostile_case import ADAPTER, TEXT_MODEL
from tests.hostile.site_keeper import SiteKeeper


def test_broken_adapters_are_refused(keeper: SiteKeeper, tmp_path: Path) -> None:
    site = keeper.site
    good = Path(site.adapter)
    if keeper.engine == "fake":  # it has no weights: any path will do, if it exists
        assert site.ask_admin("/admin/adapters", _body("x", tmp_path / "nothing")).status_code == 400
        return
    failures = []
    for name, path in make_broken_adapters(good, tmp_path):
        answer = site.ask_admin("/admin/adapters", _body(name, path))
        if not 400 <= answer.status_code < 500:
            failures.append(f"{name}: {answer.status_code} {answer.text[:300]}")
        if site.read_pids() != site.pids:
            failures.append(f"{name}: another worker")
            site.pids = site.read_pids()
    assert not failures, "\n".join(failures)
    site.assert_honest_unharmed()
    assert ADAPTER in site.ask_admin("/v1/models").text


def _body(name: str, path: Path) -> dict[str, str]:
    return {"model": TEXT_MODEL, "name": name, "path": str(path)}
