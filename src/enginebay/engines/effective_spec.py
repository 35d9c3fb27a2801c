"""What an engine does at its installed version: its declarations, corrected by the probe. Pure."""

from __future__ import annotations

from dataclasses import replace

from enginebay.contract import Capability, EngineSpec, Probe, Setting, Support, refuses


def apply_probe(spec: EngineSpec, probe: Probe | None) -> EngineSpec:
    """The spec as this installation can keep it; without a probe, the spec itself."""
    if probe is None:
        return spec
    return replace(
        spec,
        request={name: _correct_capability(name, one, probe) for name, one in spec.request.items()},
        settings={name: _correct_setting(one, spec.kind, probe) for name, one in spec.settings.items()},
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
