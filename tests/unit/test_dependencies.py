"""What is imported is declared in pyproject.toml, and what is declared is used."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTIONS = packages_distributions()
OURS = {"enginebay", "tests", "bench", "engine_echo"}
# Declared, but not imported: commands of the Makefile, plugins of pytest, and types.
TOOLS = {"ruff", "mypy", "import-linter"}
# These run in an engine's own environment, which its recipe describes.
ENGINE_SIDE = re.compile(r"src/enginebay/(engines/|models/dequantize_gguf)|tests/(contract|gpu)/|bench/gpu/")
ENGINE_LIBRARIES = {"gguf", "safetensors", "torch", "transformers", "triton", "vllm", "xgrammar"}


def normalize(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]).lower()


def declared(*extras: str) -> set[str]:
    lists = [PROJECT["dependencies"], *(EXTRAS[extra] for extra in extras)]
    return {normalize(requirement) for names in lists for requirement in names}


def find_imports(*folders: str) -> set[tuple[str, str]]:
    return set().union(*map(_find_imports, folders))


@cache
def _find_imports(folder: str) -> set[tuple[str, str]]:
    """Return each imported top-level module that is neither ours nor Python's, with its file."""
    paths = [path for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]
    return {
        (module, str(path.relative_to(ROOT)))
        for path in paths
        for module in _list_modules(ast.parse(path.read_text())) - OURS - sys.stdlib_module_names
    }


def _list_modules(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}


@cache
def find_distributions(module: str) -> set[str]:
    return {normalize(name) for name in DISTRIBUTIONS.get(module, [module])}


@pytest.mark.parametrize(
    ("folders", "extras"),
    [
        (("src",), [name for name in EXTRAS if name != "dev"]),
        (("tests", "bench", "examples"), list(EXTRAS)),
    ],
)
def test_every_import_is_declared(folders: tuple[str, ...], extras: list[str]) -> None:
    names = declared(*extras)
    engine_side = ENGINE_LIBRARIES | {"psutil"}  # vLLM and accelerate bring it
    missing = {
        (module, path)
        for module, path in find_imports(*folders)
        if not find_distributions(module) & names and not (module in engine_side and ENGINE_SIDE.match(path))
    }
    assert missing == set()


def test_only_the_lab_imports_what_only_its_extra_brings() -> None:
    lab = declared("lab") - declared()
    users = {path for module, path in find_imports("src") if find_distributions(module) & lab}
    rooms = ("src/enginebay/lab/", "src/enginebay/cli/lab/")
    assert {path for path in users if not path.startswith(rooms) and not ENGINE_SIDE.match(path)} == set()


def test_every_declared_dependency_is_used() -> None:
    used = {name for module, _ in find_imports("src") for name in find_distributions(module)}
    assert declared(*(name for name in EXTRAS if name != "dev")) - used == set()
    used |= {name for module, _ in find_imports("tests", "bench") for name in find_distributions(module)}
    plugins = {name for name in declared("dev") if name.startswith(("pytest-", "types-"))}
    assert declared("dev") - used - plugins - TOOLS == set()


def test_the_lock_has_one_version_of_every_dependency_that_pyproject_accepts() -> None:
    lines = [line for line in (ROOT / "requirements" / "lock.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []  # no index, no path, no URL
    versions = {normalize(line): line.partition("==")[2] for line in lines}
    assert len(versions) == len(lines)
    for text in [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]:
        requirement, name = Requirement(text), normalize(text)
        # pip is the environment's own: any that creates environments will do.
        assert name == "pip" or requirement.specifier.contains(versions[name]), f"{text}: run `make lock`"
