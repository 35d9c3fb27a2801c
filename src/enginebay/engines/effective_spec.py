"""The spec of an installed engine: its declarations, corrected by the probe. Pure."""

from __future__ import annotations

from dataclasses import replace

from enginebay.contract import Capability, EngineSpec, Probe, Setting, Support, refuses


def apply_probe(spec: EngineSpec, probe: Probe | None) -> EngineSpec:
    """Return the spec that this installation supports; without a probe, the spec unchanged."""
    if probe is None:
        return spec
    return replace(
        spec,
        request={name: _correct_capability(name, capability, probe) for name, capability in spec.request.items()},
        settings={name: _correct_setting(setting, spec.kind, probe) for name, setting in spec.settings.items()},
    )


def _correct_capability(name: str, declared: Capability, probe: Probe) -> Capability:
    reason = probe.refused.get(name)
    if reason is None or declared.support is Support.REFUSES:
        return declared
    return refuses(reason)


def _correct_setting(declared: Setting, kind: str, probe: Probe) -> Setting:
    if not declared.native or probe.settings is None or declared.native in probe.settings:
        return declared
    return replace(declared, capability=refuses(f"not in {kind} {probe.version}"))
