"""Bodies of the requests that manage the server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]


class NoBody(Struct, forbid_unknown_fields=True):
    """Of a request that has nothing to say: nothing, or an empty object."""


class ModelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/load and /admin/unload"""

    model: ModelName


class SwitchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/switch"""

    from_: Annotated[ModelName, Meta(description="The model that leaves.")] = field(name="from")
    to: Annotated[ModelName, Meta(description="The model that comes.")]


class AdapterNameBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters/remove"""

    model: ModelName
    name: Annotated[ModelName, Meta(description="The adapter, as clients ask for it in place of a model.")]


class AdapterBody(AdapterNameBody, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters"""

    path: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096, pattern=r"^/[^\x00]*$",
            description="Where the adapter lies on the server's host, from the root.",
        ),
    ]  # fmt: skip


class UpgradeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/engines/upgrade"""

    engine: Annotated[
        ModelName, Meta(description="KIND==VERSION, which is installed already; KIND alone: its newest version.")
    ]
