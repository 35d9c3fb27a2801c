"""Request bodies of /admin/*. Their names are those in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]


class NoBody(Struct, forbid_unknown_fields=True):
    """An empty object."""


class ModelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/load, /admin/sleep and /admin/unload"""

    model: ModelName


class SwitchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/switch"""

    from_: Annotated[ModelName, Meta(description="The model to put to sleep or unload.")] = field(name="from")
    to: Annotated[ModelName, Meta(description="The model to load.")]


class AdapterNameBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters/remove"""

    model: ModelName
    name: Annotated[ModelName, Meta(description="The adapter's name, which clients use as the model.")]


class AdapterBody(AdapterNameBody, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters"""

    path: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096, pattern=r"^/[^\x00]*$",
            description="Absolute path of the adapter on the server's host.",
        ),
    ]  # fmt: skip


class UpgradeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/engines/upgrade"""

    engine: Annotated[
        ModelName,
        Meta(description="KIND==VERSION, which must be installed; KIND alone selects the newest installed version."),
    ]
