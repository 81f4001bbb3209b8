import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import CheckpointError, ResourceError

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**130), 2**130)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.builds(lambda n: np.arange(n, dtype=np.int16), st.integers(0, 4))
    | st.builds(lambda n: torch.full((n, 2), 0.5), st.integers(0, 4))
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=12,
)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=60, deadline=None)
@given(trees)
def test_a_tree_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    from platform.storage import load_tree, save_tree

    folder = tmp_path_factory.mktemp("tree")
    save_tree(folder, "state", {"tree": tree})
    assert equal(load_tree(folder, "state"), {"tree": tree})


def test_a_generator_state_comes_back(tmp_path: Path) -> None:
    from platform.storage import load_tree, save_tree

    rng = np.random.default_rng(3)
    save_tree(tmp_path, "state", rng.bit_generator.state)
    expected = rng.random(4)
    rng.bit_generator.state = load_tree(tmp_path, "state")
    assert np.array_equal(rng.random(4), expected)


def test_a_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    from platform.storage import new_folder, verify_folder

    def break_off() -> None:
        with new_folder(tmp_path / "a") as partial:
            (partial / "x").write_text("1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "a") as partial:
        (partial / "x").write_text("1")
    verify_folder(tmp_path / "a")
    with pytest.raises(CheckpointError, match="never overwritten"), new_folder(tmp_path / "a"):
        pass


@pytest.mark.parametrize("harm", ["change", "remove", "layout", "manifest"])
def test_a_torn_folder_is_refused(tmp_path: Path, harm: str) -> None:
    from platform.storage import MANIFEST, new_folder, verify_folder

    folder = tmp_path / "a"
    with new_folder(folder) as partial:
        (partial / "x").write_text("1")
    manifest = folder / MANIFEST
    harms = {
        "change": lambda: (folder / "x").write_text("2"),
        "remove": lambda: (folder / "x").unlink(),
        "layout": lambda: manifest.write_text(manifest.read_text().replace('"layout": 1', '"layout": 9')),
        "manifest": manifest.unlink,
    }
    harms[harm]()
    with pytest.raises(CheckpointError) as raised:
        verify_folder(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "no permission"), (errno.EROFS, "read-only")],
)
def test_the_disks_refusals_are_one_line_with_a_remedy(tmp_path: Path, code: int, words: str) -> None:
    from platform.storage import new_folder

    with pytest.raises(ResourceError, match=words), new_folder(tmp_path / "a"):
        raise OSError(code, "no")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_safetensors_is_the_same_error(tmp_path: Path) -> None:
    from platform.storage import disk_errors

    from safetensors import SafetensorError

    # The words of safetensors 0.8 on a full file system; it replaces the target, so no device file can stand in.
    text = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(ResourceError, match="disk is full"), disk_errors(tmp_path):
        raise SafetensorError(text)
    with pytest.raises(SafetensorError, match="header"), disk_errors(tmp_path):
        raise SafetensorError("invalid header")
