"""Arrows between the packages point one way, and a command starts without the heavy libraries."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "configs": {"configs"},
    "buffers": {"buffers", "configs"},
    "policies": {"policies", "configs"},
    "world_models": {"world_models", "configs"},
    "platform": {"world_models", "policies", "buffers", "configs"},
}
"""Absolute imports of ours; inside ``platform/`` imports are relative, since the name is also Python's module."""
HEAVY = {
    "torch",
    "ray",
    "diffusers",
    "transformers",
    "matplotlib",
    "imageio",
    "tensorflow",
    "wandb",
    "mujoco",
}


def imports(file: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of every absolute import in ``file``, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = []
    for file in files:
        for line, name in imports(file):
            top, _, inner = name.partition(".")
            ours = top in ALLOWED and (
                top != "platform" or (ROOT / "platform" / f"{inner.split('.')[0]}.py").exists()
            )
            if ours and top not in ALLOWED[package]:
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


@pytest.mark.parametrize(
    "statement",
    ["import configs.schema", "import configs.loader", "import configs.document", "import platform.command"],
)
def test_light_modules_import_nothing_heavy(statement: str) -> None:
    script = f"{statement}\nimport json, sys\nsys.stdout.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(done.stdout))


def test_help_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "platform.train", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "configs" in loaded
    assert not HEAVY & loaded
