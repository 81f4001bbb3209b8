"""Model folders: what was trained is what is loaded, and only where it fits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.errors import CheckpointError
from tests.run_helper import config


def context(*overrides: str) -> Any:
    from platform.context import make_context

    return make_context(config("real", *overrides), seed=0, device="cpu")


def test_weights_in_any_memory_format_come_back_as_they_were(tmp_path: Path) -> None:
    from platform.models import read_model, save_model
    from platform.weights import load_arrays, module_arrays

    made = context()
    policy = made.make_policy().to(memory_format=torch.channels_last)
    strided = [p for p in policy.parameters() if p.dim() == 4 and not p.is_contiguous()]
    assert strided, "the test needs a weight that does not lie in order"
    arrays = module_arrays(policy)
    save_model(tmp_path / "policy", made.describe("policy"), arrays, {})
    other = made.make_policy()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(7.0)
    load_arrays(other, read_model(tmp_path / "policy", "policy", made))
    for name, value in policy.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("policy.bins=8", "bins"),
        ("env.camera_size=64", "cameras"),
        ("policy.width=32", "width"),
        ("policy.chunk=6", "chunk"),
    ],
)
def test_a_policy_for_other_shapes_is_refused_by_the_name_of_the_field(
    tmp_path: Path, override: str, words: str
) -> None:
    from platform.models import read_model, save_model
    from platform.weights import module_arrays

    made = context()
    save_model(tmp_path / "policy", made.describe("policy"), module_arrays(made.make_policy()), {})
    with pytest.raises(CheckpointError, match=words) as raised:
        read_model(tmp_path / "policy", "policy", context(override))
    assert "\n" not in str(raised.value)


def test_another_kind_of_model_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    from platform.models import read_model, save_model
    from platform.weights import module_arrays

    made = context()
    save_model(tmp_path / "policy", made.describe("policy"), module_arrays(made.make_policy()), {})
    with pytest.raises(CheckpointError, match="holds the policy, not the obs_model"):
        read_model(tmp_path / "policy", "obs_model", made)
    with pytest.raises(CheckpointError, match="no policy there"):
        read_model(tmp_path, "policy", made)


def test_published_arrays_are_copies(tmp_path: Path) -> None:
    from platform.weights import WeightStore, module_arrays

    policy = context().make_policy()
    store = WeightStore()
    store.publish("policy", 0, module_arrays(policy))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    held = store.fetch("policy", -1)
    assert held is not None
    for name, array in held.arrays.items():
        assert (
            not np.array_equal(array, policy.state_dict()[name].numpy())
            or array.size == 0
            or "scale" in name
            or "mean" in name
        )
    assert store.fetch("policy", 0) is None
