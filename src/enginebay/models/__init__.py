"""Model sources, downloads, the model store, and the resolution of model names."""

from enginebay.models.dense_weights import ensure_dense_weights
from enginebay.models.known_models import DEFAULT_MODEL, KNOWN_MODELS
from enginebay.models.model_manifest import StoredModel
from enginebay.models.model_resolver import ensure_model, resolve_model
from enginebay.models.model_store import ModelStore

__all__ = [
    "DEFAULT_MODEL",
    "KNOWN_MODELS",
    "ModelStore",
    "StoredModel",
    "ensure_dense_weights",
    "ensure_model",
    "resolve_model",
]
