"""Arrows point down only, and heavy libraries are imported where they are used."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mtbench_ray"
FILES = sorted(PACKAGE.rglob("*.py"))
LEVELS = {
    "schema": 0, "errors": 0, "config": 0, "redact": 0,
    "thinking": 0,
    "names": 1, "journal": 1, "lock": 1, "parquet": 1, "runs": 1, "stats": 1, "assets": 1,
    "demo_model": 1, "checkpoints": 1, "overrides": 1, "settle": 1, "benchmarks": 1, "endpoint": 1,
    "judges": 2, "engines": 2, "store": 2, "fastchat": 3,
    "jobs": 4, "plan": 3, "pipeline": 4, "shards": 3, "cluster": 3, "losses": 5, "changes": 5,
    "signals": 1, "watchdog": 1, "judging": 5, "session": 5, "owed": 5, "deaths": 1,
    "standings": 5, "progress": 5, "reports": 5,
    "threads": 0, "sockets": 0, "sources": 1, "typed_secrets": 2, "debugging": 1, "overview": 5,
    "mistakes": 1, "usage": 1, "evaluations": 1, "demo_size": 3,
    "run": 6, "hydra_launcher": 6, "composing": 6, "cli": 7, "__main__": 8,
}  # fmt: skip
LAZY = {"vllm", "torch", "transformers", "openai", "matplotlib", "datasets", "ray", "safetensors"}
PURE = ("schema", "errors", "config", "stats", "benchmarks", "judges")
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_down(path):
    if part(path) == "__init__":
        return
    mine = LEVELS[part(path)]
    for module in top_level_imports(path):
        names = module.split(".")
        if names[0] != "mtbench_ray" or len(names) < 2 or names[1] not in LEVELS:
            continue
        if names[1] != part(path):
            assert LEVELS[names[1]] <= mine, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_inside_functions(path):
    if part(path) in ("hydra_launcher", "demo_model"):
        return
    heavy = {module.split(".")[0] for module in top_level_imports(path)} & (LAZY | {"hydra"})
    assert not heavy


@pytest.mark.parametrize("name", PURE)
def test_correctness_code_needs_only_the_standard_library_and_numpy(name):
    import sys

    for path in FILES:
        if part(path) != name or path.name in ("stage.py", "server.py"):
            continue
        for module in top_level_imports(path):
            top = module.split(".")[0]
            assert top in PURE_MAY or top in sys.stdlib_module_names, f"{path.name}: {module}"


def test_only_the_pipeline_imports_ray_data_and_only_the_command_line_imports_hydra():
    ray_data = {part(p) for p in FILES if any(m.startswith("ray.data") for m in all_imports(p))}
    hydra = {part(p) for p in FILES if any(m.split(".")[0] == "hydra" for m in all_imports(p))}
    assert ray_data == {"pipeline"}
    assert hydra == {"composing", "hydra_launcher", "typed_secrets"}
