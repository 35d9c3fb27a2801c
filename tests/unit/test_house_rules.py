"""The house rules as checks: one name for one idea, small rooms, short files, and no retired name left anywhere."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from enginebay.engines.registry import load_built_in_specs

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "enginebay"
RETIRED = Path(__file__).with_name("retired_names.txt")

MAX_MODULES_PER_FOLDER = 15
MAX_LINES_PER_FILE = 450
MAX_P90_FUNCTION_LINES = 17

# File names that may repeat, and where: siblings that do the same job for another engine, dialect or command.
ENGINE_FILES = (
    "spec engine settings memory library sampling adapters errors sleep request_body load_plan presets preferences"
)
SIBLINGS = {
    **dict.fromkeys(ENGINE_FILES.split(), r"engines/[^/]+"),
    **dict.fromkeys(["schemas", "endpoints", "responses"], r"server/api/[^/]+"),
}
# A command's module has the name of the command, whatever else has it.
COMMAND_ROOMS = ("cli/commands", "cli/admin", "cli/lab")

# Formats and protocols that have the name of a kind.
FORMATS_NAMED_LIKE_A_KIND = (("contract/engine_spec.py", "fake"), ("cli/launch/agent_settings.py", "openai"))


@cache
def modules() -> dict[str, ast.Module]:
    """Every source file but generated ones, by its path below the package."""
    paths = [path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py")]
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in sorted(paths)}


def test_no_public_class_is_defined_twice() -> None:
    homes = defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_module_name_repeats_only_among_siblings() -> None:
    homes = defaultdict(list)
    for path in modules():
        folder, _, name = path.rpartition("/")
        if name != "__init__.py" and not _is_sibling(folder, name.removesuffix(".py")):
            homes[name].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def _is_sibling(folder: str, stem: str) -> bool:
    return folder in COMMAND_ROOMS or (stem in SIBLINGS and re.fullmatch(SIBLINGS[stem], folder) is not None)


def test_no_module_has_the_name_of_a_package_beside_it() -> None:
    folders = {path.rpartition("/")[0] for path in modules()}
    assert [path for path in modules() if path.removesuffix(".py") in folders] == []


def test_no_folder_is_crowded() -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in modules():
        folder, _, name = path.rpartition("/")
        counts[folder] += name != "__init__.py"
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES_PER_FOLDER} == {}


@pytest.mark.parametrize("folder", ["src", "tests", "bench"])
def test_no_file_is_long(folder: str) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in _python_files(folder)}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES_PER_FILE} == {}


def _python_files(folder: str) -> Iterator[Path]:
    return (path for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts)


def test_functions_are_short() -> None:
    lengths = [
        node.end_lineno - node.lineno + 1
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    assert statistics.quantiles(lengths, n=10)[-1] <= MAX_P90_FUNCTION_LINES


def test_no_retired_name_is_left() -> None:
    """`retired_names.txt` lists modules and classes that have moved or have a new name: code, tests and docs must follow."""
    names = [line for line in RETIRED.read_text().split() if line]
    pattern = re.compile(r"(?<![\w.])(?:" + "|".join(map(re.escape, names)) + r")(?![\w])")
    left = []
    for path in _tracked_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            left += [f"{path.relative_to(ROOT)}:{number}: {name}" for name in pattern.findall(line)]
    assert left == []


def _tracked_files() -> list[Path]:
    """Everything that people read or run, but for the history: the changelog, raw figures, and the list itself."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    kinds = {".py", ".md", ".toml", ".yaml", ".sh", ".proto", ".html", ".js"}
    wanted = [ROOT / name for name in listed if Path(name).suffix in kinds or Path(name).name == "Makefile"]
    history = (ROOT / "CHANGELOG.md", ROOT / "docs" / "runs")
    return [
        path for path in wanted if path.is_file() and not any(path == one or one in path.parents for one in history)
    ]


def test_no_file_outside_the_engines_names_an_engine_kind() -> None:
    """What is known of a kind belongs in its spec, so that a third-party engine is treated like ours."""
    kinds = {spec.kind for spec in load_built_in_specs()}
    packages = re.compile(rf"enginebay\.engines\.({'|'.join(kinds)})\b")
    found = [
        f"{path}:{node.lineno}: {text}"
        for path, tree in modules().items()
        if not path.startswith("engines/")
        for node in ast.walk(tree)
        for text in _list_names(node)
        if packages.match(text) or (isinstance(node, ast.Constant) and text in kinds)
        if (path, text) not in FORMATS_NAMED_LIKE_A_KIND
    ]
    assert found == []


def _list_names(node: ast.AST) -> list[str]:
    """The strings and imported modules of one node."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [name.name for name in node.names] if isinstance(node, ast.Import) else []
