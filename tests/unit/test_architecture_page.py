"""The architecture page names files and functions: each must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", PAGE)))


def test_the_page_names_functions() -> None:
    assert sum(bool(name) for _, name in NAMED) > 40


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda value: value or "file")
def test_what_the_page_names_exists(path: str, name: str) -> None:
    scope: ast.AST = ast.parse((ROOT / "src" / "enginebay" / path).read_text())
    for part in filter(None, name.split(".")):
        scope = next(node for node in ast.iter_child_nodes(scope) if _defines(node, part))


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name


def test_packages_of_the_page_exist() -> None:
    packages_part = PAGE.split("## Packages", 1)[1].split("## Glossary", 1)[0]
    named = {
        name
        for line in packages_part.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)/`", line.split("|")[1])
    }
    packages = {path.name for path in (ROOT / "src" / "enginebay").iterdir() if (path / "__init__.py").is_file()}
    assert named == packages
