"""What happens in the fleet, written into the log and the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from enginebay.fleet.lifecycle.replica import Replica
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import ServerMetrics


class FleetObserver:
    """Called by the fleet for each thing that happens. Before the server is up, only troubles are logged."""

    def __init__(self, log: ServerLog, metrics: ServerMetrics) -> None:
        self._log = log
        self._metrics = metrics
        self.serving = False

    def __call__(self, what: str, /, *, level: str = "info", **fields: Any) -> None:
        if self.serving or level != "info":
            self._log.log_event(
                what, level=level, **{name: value for name, value in fields.items() if value is not None}
            )
        if what == "model ready":
            self._record_switch(fields)
        elif what == "worker died":
            self._metrics.worker_deaths.child(*_metric_labels(fields), fields["cause"]).inc()

    def _record_switch(self, fields: dict[str, Any]) -> None:
        labels = _metric_labels(fields)
        self._metrics.switch_time.child(*labels, fields["came_from"]).observe(fields["seconds"])
        for name, seconds in fields.items():
            if name.endswith("_s"):
                self._metrics.switch_phase.child(*labels, name.removesuffix("_s")).inc(seconds)
        if fields.get("missed"):
            self._metrics.switch_slo_missed.child(*labels).inc()

    def update_gauges(self, places: Iterable[Replica]) -> None:
        """When somebody asks for the metrics."""
        ready = {(place.variant.model, place.variant.kind): place.ready for place in places}
        self._metrics.model_awake.keep_only(ready)
        for labels, is_ready in ready.items():
            self._metrics.model_awake.child(*labels).set(int(is_ready))


def _metric_labels(fields: dict[str, Any]) -> tuple[str, str]:
    """A fallback is told by its engine, not by a name of its own."""
    return fields["model"].partition("@")[0], fields["engine"]
