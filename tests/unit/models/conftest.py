from __future__ import annotations

import pytest

from enginebay.models import ModelStore, from_pypi
from tests.unit.models.fake_hub import FakeHub, serve_hub
from tests.unit.models.tiny_models import build_directory_files


@pytest.fixture
def store(tmp_path, monkeypatch) -> ModelStore:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    return ModelStore()


@pytest.fixture
def hub(monkeypatch):
    """The fake hub, as if HF_ENDPOINT had been set before the library's import."""
    from huggingface_hub import constants

    with serve_hub(FakeHub(build_directory_files(values=100_000))) as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        template = made.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)  # what has arrived is written in such pieces
        yield made


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels as the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


@pytest.fixture
def no_pip(index, monkeypatch):
    """The wheels of `index`, without running pip."""
    monkeypatch.setattr(from_pypi, "_download", lambda source, *_: next(index.glob("*.whl")))
    return index
