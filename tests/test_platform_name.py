"""The folder ``platform/`` and Python's module of that name live side by side, in every process."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PUBLIC = (
    "import json, platform, sys\n"
    "names = sorted(n for n in dir(platform) if not n.startswith('_'))\n"
    "shown = {n: repr(type(getattr(platform, n))) for n in names}\n"
    "sys.stdout.write(json.dumps([shown, platform.__file__, platform.platform()]))\n"
)
USAGE = "python -m platform.train {real,imagined,real+imagined}"


def python(*arguments: str, executable: str = sys.executable, cwd: Path = ROOT) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Interpreter of an environment where Reverie is installed from a wheel and the checkout is not known."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    # A path in a .pth file is put on sys.path, but the .pth files in that path are not read: the dependencies are
    # there, the editable install is not.
    (own,) = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "dependencies.pth").write_text(own + "\n")
    return str(folder / "env" / "bin" / "python")


def test_the_standard_module_is_untouched() -> None:
    original, file, description = json.loads(python("-I", "-S", "-c", PUBLIC))
    ours, ours_file, ours_description = json.loads(python("-c", PUBLIC))
    assert ours == original
    assert (ours_file, ours_description) == (file, description)


def test_no_module_of_ours_replaces_an_attribute_of_the_standard_one() -> None:
    original, _, _ = json.loads(python("-I", "-S", "-c", PUBLIC))
    modules = {path.stem for path in (ROOT / "platform").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert "train" in modules
    assert not modules & set(original)
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_libraries_that_import_it_work_from_the_repository_root() -> None:
    script = (
        "import importlib.util, platform, uuid, torch, ray\n"
        "assert platform.system() and uuid.uuid4()\n"
        "if importlib.util.find_spec('wandb'): import wandb\n"
    )
    python("-c", script)


@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_editable_install_runs_commands_from_anywhere(flags: list[str], tmp_path: Path) -> None:
    if sys.version_info < (3, 11) and flags:
        pytest.skip("-P came with Python 3.11")
    for cwd in (ROOT, tmp_path):
        assert USAGE in python(*flags, "-m", "platform.train", "--help", cwd=cwd)


@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_wheel_install_runs_commands_from_anywhere(
    flags: list[str], wheel_python: str, tmp_path: Path
) -> None:
    if sys.version_info < (3, 11) and flags:
        pytest.skip("-P came with Python 3.11")
    assert USAGE in python(*flags, "-m", "platform.train", "--help", executable=wheel_python, cwd=tmp_path)
    where = "import platform.train, configs, sys; sys.stdout.write(platform.train.__file__ + '\\n' + configs.__file__)"
    for file in python(*flags, "-c", where, executable=wheel_python, cwd=tmp_path).splitlines():
        assert not Path(file).is_relative_to(ROOT)


def test_wheel_composes_configs(wheel_python: str, tmp_path: Path) -> None:
    line = ["-m", "platform.train", "real", "sync=on_policy", "host=serial", "--dry-run"]
    shown = python(*line, executable=wheel_python, cwd=tmp_path)
    assert "kind: serial" in shown
    assert "budget: 0.0" in shown


def test_the_standard_module_is_untouched_by_the_wheel(wheel_python: str, tmp_path: Path) -> None:
    assert json.loads(python("-c", PUBLIC, executable=wheel_python, cwd=tmp_path)) == json.loads(
        python("-I", "-S", "-c", PUBLIC, executable=wheel_python, cwd=tmp_path)
    )


def test_a_ray_worker_finds_the_commands(tmp_path: Path) -> None:
    script = (
        "import ray, sys\n"
        "@ray.remote\n"
        "def usage():\n"
        "    import platform, platform.train\n"
        "    assert platform.system()\n"
        "    return platform.train.__doc__\n"
        "ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)\n"
        "sys.stdout.write(ray.get(usage.remote()))\n"
        "ray.shutdown()\n"
    )
    assert USAGE in python("-c", script, cwd=tmp_path)


def test_importing_it_twice_gives_one_module() -> None:
    from platform import command

    assert sys.modules["platform"] is platform
    assert sys.modules["platform.command"] is command
