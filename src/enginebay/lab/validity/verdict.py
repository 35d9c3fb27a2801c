"""The verdict on a run and its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Literal

Severity = Literal["informative", "invalid"]
Status = Literal["valid", "informative", "invalid"]

_RANK: Mapping[str, int] = {"valid": 0, "informative": 1, "invalid": 2}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not valid. `figure` and `limit` are in the unit of the code's rule."""

    code: str
    severity: Severity
    message: str
    figure: float | None = None
    limit: float | None = None


class NoReason(Enum):
    """Result of a check without a reason."""

    FINE = "fine"
    UNKNOWN = "unknown"  # facts are missing: nothing is claimed


FINE, UNKNOWN = NoReason.FINE, NoReason.UNKNOWN
Finding = Reason | NoReason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Valid: publish. Informative: publish with the reasons next to the numbers. Invalid: do not publish."""

    status: Status
    reasons: tuple[Reason, ...] = ()
    checked: tuple[str, ...] = ()  # codes with known facts
    unchecked: tuple[str, ...] = ()  # codes about which nothing is claimed

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as it is stored in the manifest."""
        return {
            "status": self.status,
            "reasons": [asdict(reason) for reason in self.reasons],
            "checked": list(self.checked),
            "unchecked": list(self.unchecked),
        }


def worst_status(statuses: Iterable[str]) -> Status:
    """Return the worst status or severity, or valid if there is none."""
    return max(("valid", *statuses), key=_RANK.__getitem__)  # type: ignore[arg-type]


def grade_figure(code: str, figure: float, informative: float, invalid: float, message: str) -> Finding:
    """Grade a figure that should be small against two limits. NaN exceeds both."""
    if not figure <= invalid:
        return Reason(code, "invalid", message, figure, invalid)
    if not figure <= informative:
        return Reason(code, "informative", message, figure, informative)
    return FINE


def pick_gravest(*findings: Finding) -> Finding:
    """Return the gravest finding; UNKNOWN only if nothing is known."""
    reasons = [finding for finding in findings if isinstance(finding, Reason)]
    if reasons:
        return max(reasons, key=lambda reason: _RANK[reason.severity])
    return FINE if FINE in findings else UNKNOWN
