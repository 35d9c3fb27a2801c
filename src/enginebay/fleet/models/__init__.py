"""The model store: where models come from, where they are kept, and how engines get them.

from enginebay.fleet.models import DEFAULT, Store, StoredModel, dense_path, ensure, resolve
"""

from enginebay.fleet.models.catalogue import CATALOGUE, DEFAULT
from enginebay.fleet.models.dense import dense_path
from enginebay.fleet.models.manifest import StoredModel
from enginebay.fleet.models.resolving import ensure, resolve
from enginebay.fleet.models.store import Store

__all__ = ["CATALOGUE", "DEFAULT", "Store", "StoredModel", "dense_path", "ensure", "resolve"]
