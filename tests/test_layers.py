"""Arrows point down only, and heavy libraries are imported where they are used."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest
from paths import PACKAGE, TESTS

FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (
    "errors", "system", "config", "schema", "stats", "workspace", "models", "endpoint", "engines",
    "judges", "benchmarks", "validate", "planning", "generate", "fastchat", "reports", "trackers",
    "run", "cli", "api", "__main__",
)  # fmt: skip
"""Folders and root modules; each imports only from those before it."""
LAZY = {"vllm", "torch", "transformers", "openai", "matplotlib", "datasets", "ray", "safetensors",
        "wandb", "mlflow", "tensorboard", "trackio"}  # fmt: skip
PURE = ("schema", "errors", "config", "stats", "benchmarks", "judges")
_CALLS = ("stage", "judge_call")
PURE_MAY = {"numpy", "mtbench_ray"}


def top_level_imports(path: Path) -> set[str]:
    """Modules imported when the file is imported, not inside functions or for typing only."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ):
            continue
        pending.extend(ast.iter_child_nodes(node))
    return found


def all_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return found | {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


def part(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports_of_ours(path: Path) -> set[str]:
    """Parts of this package that a file imports anywhere, inside functions too."""
    modules = (module.split(".") for module in all_imports(path))
    return {names[1] for names in modules if names[0] == "mtbench_ray" and len(names) > 1}


def test_the_root_holds_four_modules_the_python_interface_and_a_folder_for_each_part():
    """``api`` is beside ``__main__`` the other way in: what ``import mtbench_ray`` offers."""
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert modules == {"config", "schema", "errors", "validate", "api"}
    assert {part(path) for path in FILES} - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_down(path):
    if part(path) == "__init__":
        return
    below = LAYERS[: LAYERS.index(part(path)) + 1]
    assert imports_of_ours(path) <= set(below), path


@pytest.mark.parametrize("folder", ["engines", "judges"])
def test_folders_in_a_folder_do_not_import_each_other(folder):
    """Of the parts of a folder that are folders themselves."""
    found = set()
    inside = [path for path in FILES if path.relative_to(PACKAGE).parts[0] == folder]
    for path in inside:
        parts = path.relative_to(PACKAGE).parts
        mine = parts[1] if len(parts) > 2 else ""
        for module in all_imports(path):
            names = module.split(".")
            if names[:2] == ["mtbench_ray", folder] and len(names) > 2:
                other = names[2] if (PACKAGE / folder / names[2]).is_dir() else ""
                if other and mine and other != mine:
                    found.add((mine, other))
    assert not {(b, a) for a, b in found} & found


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES} - {PACKAGE}))
def test_each_folder_says_what_comes_in_and_goes_out(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    for word in ("In:", "Out:", ">>>"):
        assert word in text, folder.name


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES} - {PACKAGE}))
def test_the_example_of_each_folder_works(folder):
    name = ".".join(folder.relative_to(PACKAGE.parent).parts)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_inside_functions(path):
    if path.stem in ("hydra_launcher", "demo_model"):
        return
    heavy = {module.split(".")[0] for module in top_level_imports(path)} & (LAZY | {"hydra"})
    assert not heavy


@pytest.mark.parametrize("name", PURE)
def test_correctness_code_needs_only_the_standard_library_and_numpy(name):
    import sys

    for path in FILES:
        # What calls a service, or runs one.
        if part(path) != name or path.stem in _CALLS or "local_server" in path.parts:
            continue
        for module in top_level_imports(path):
            top = module.split(".")[0]
            assert top in PURE_MAY or top in sys.stdlib_module_names, f"{path.name}: {module}"


def test_only_the_pipeline_imports_ray_data_and_only_the_command_line_imports_hydra():
    ray_data = {p.stem for p in FILES if any(m.startswith("ray.data") for m in all_imports(p))}
    hydra = {p.stem for p in FILES if any(m.split(".")[0] == "hydra" for m in all_imports(p))}
    assert ray_data == {"ray_stream"}
    assert hydra == {"benchmark_settings", "hydra_app", "hydra_launcher", "typed_secrets"}


NO_BENCHMARK = ("reports", "trackers", "planning", "run", "judges/stage.py", "judges/judge_call.py",
                "judges/outcomes.py", "judges/scores.py", "judges/base.py")  # fmt: skip
"""What serves every benchmark and grader alike."""
OF_ONE = re.compile(
    r"(?<!itertools\.)pairwise|[\"\']single[\"\']|mt_bench|vicuna|(?:first|second)[_ ]turn"
    r"|\bratings?\b|win_rate|turn == [12]|range\(1, 3\)|\(1, 2\)",
    re.IGNORECASE,
)
"""Names, turns, and verdicts of one benchmark or grader."""


@pytest.mark.parametrize("place", NO_BENCHMARK)
def test_what_serves_every_benchmark_knows_none_by_name(place):
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in FILES
        if str(path.relative_to(PACKAGE)).startswith(place)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if OF_ONE.search(line)
    ]
    assert not found
    assert OF_ONE.search('if row.mode.startswith("pairwise"):'), "the search finds what it is for"


TEST_FILES = sorted(TESTS.rglob("*.py"))


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.name)
def test_what_tests_and_benches_import_of_ours_is_there(path):
    """Also inside functions: a bench, or a test that is skipped here, is else found out late."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mtbench_ray"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")
