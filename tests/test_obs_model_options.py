"""Options of M_obs: attention, depth, checkpointing, compilation, FP8, DIAMOND's recipe."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from configs.errors import ConfigError, ResourceError
from configs.obs_model import ObsModelConfig
from tests.model_parts import SPEC, encode, make_windows, obs_config
from world_models import acceleration
from world_models.acceleration import uses_bfloat16
from world_models.obs_model import ObservationModel
from world_models.training import ObsModelTrainer


def make_model(**changes: Any) -> ObservationModel:
    """A tiny model with the same weights each time."""
    torch.manual_seed(0)
    return ObservationModel(SPEC, obs_config(**{"precision": "float32", **changes}))


def trained(model: ObservationModel, updates: int = 2) -> dict[str, torch.Tensor]:
    """Its weights after some updates."""
    trainer = ObsModelTrainer(model, model.config, encode=encode, seed=0)
    for update in range(updates):
        trainer.update(make_windows(4, model.config.history, 3, seed=update))
    return model.state_dict()


def test_attention_lets_far_cells_see_each_other() -> None:
    """A change in one corner reaches the opposite corner's prediction only through attention."""
    reach = {}
    for name, attention in (("none", []), ("coarse", [1])):
        model = make_model(attention=attention, channels=[8, 8], fold=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.denoiser.unet.mid_block = None  # type: ignore[assignment]
        for module in model.modules():
            if isinstance(module, torch.nn.GroupNorm):
                # A norm over the whole frame would carry the change too.
                module.forward = lambda x: x  # type: ignore[method-assign]
        history = torch.zeros(2, 1, 3, 16, 16)
        history[1, :, :, 0, 0] = 1.0
        words = torch.ones(2, SPEC.instruction_length, dtype=torch.long)
        vector = model.denoiser.conditioner.vector(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2, 2, 2))
        with torch.no_grad():
            out = model.denoiser(torch.zeros(2, 3, 16, 16), torch.zeros(2), history[:, 0], vector, words)
        reach[name] = float((out[0] - out[1])[:, -1, -1].abs().max())
    assert reach["none"] < 1e-8
    assert reach["coarse"] > 1e-7


@pytest.mark.parametrize(
    "changes", [{"attention": [0, 1]}, {"layers_per_block": 2}, {"channels": [8, 8, 8]}, {"fold": 1}]
)
def test_every_architecture_trains(changes: dict[str, Any]) -> None:
    """Two updates with chains leave finite weights that have moved."""
    model = make_model(**changes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = trained(model)
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


def test_checkpointing_changes_memory_not_learning() -> None:
    """The same weights after two updates, with the U-Net's blocks run again in the backward pass."""
    plain, saving = make_model(), make_model(checkpointing=True)
    runs = {"plain": 0, "saving": 0}
    for name, model in (("plain", plain), ("saving", saving)):

        def count(*_: Any, name: str = name) -> None:
            runs[name] += 1

        model.denoiser.unet.down_blocks[0].resnets[0].register_forward_pre_hook(count)  # type: ignore[union-attr,index]
    one, two = trained(plain), trained(saving)
    for key, value in one.items():
        torch.testing.assert_close(two[key], value)
    assert runs["saving"] == runs["plain"] + 2


def test_settings_that_do_not_fit_are_refused() -> None:
    """In one line each."""
    with pytest.raises(ConfigError, match="names level 2"):
        obs_config(attention=[2])
    with pytest.raises(ConfigError, match="attention heads of 3"):
        obs_config(attention=[1], attention_head=3)
    with pytest.raises(ConfigError, match="no offset noise"):
        obs_config(sampler="consistency", offset_noise=0.3)


def test_fp8_is_refused_where_the_machine_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU; one that is too old; no torchao; no layer of a fitting size."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ResourceError, match="needs a GPU"):
        make_model(precision="fp8")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    with pytest.raises(ResourceError, match=r"8\.9, this one has 8\.0"):
        make_model(precision="fp8")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(acceleration, "find_spec", lambda _: None)
    with pytest.raises(ResourceError, match="torchao is not installed"):
        make_model(precision="fp8")
    monkeypatch.setattr(acceleration, "find_spec", lambda _: object())
    with pytest.raises(ResourceError, match="multiples of 16"):
        acceleration.to_fp8(torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3))))


def test_fp8_converts_the_inner_linear_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate is handed the U-Net once."""
    monkeypatch.setattr(acceleration, "require_fp8", lambda: None)
    handed: list[tuple[torch.nn.Module, Any]] = []
    monkeypatch.setattr(
        "accelerate.utils.ao.convert_model_to_fp8_ao", lambda module, config: handed.append((module, config))
    )
    stand_in = SimpleNamespace(Float8LinearConfig=lambda **settings: settings)
    monkeypatch.setitem(sys.modules, "torchao.float8", stand_in)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torchao", SimpleNamespace(float8=stand_in))  # type: ignore[arg-type]
    model = make_model(precision="fp8", channels=[16, 16], attention=[1])
    assert handed == [(model.denoiser.unet, {"pad_inner_dim": True})]
    assert uses_bfloat16(model.denoiser.precision, "cuda")


@pytest.mark.parametrize("has", [True, False])
def test_a_model_computes_in_bfloat16_where_the_machine_does(
    monkeypatch: pytest.MonkeyPatch, *, has: bool
) -> None:
    """And in bfloat16 anywhere where that was asked for."""
    monkeypatch.setattr("world_models.acceleration.computes_bfloat16", lambda device: has)
    assert ObsModelConfig().precision == "auto"
    seen: dict[str, torch.dtype] = {}
    for precision in ("auto", "bfloat16", "float32"):
        model = make_model(precision=precision)
        layer = next(each for each in model.denoiser.unet.modules() if isinstance(each, torch.nn.Conv2d))
        layer.register_forward_hook(lambda _, __, out, name=precision: seen.update({name: out.dtype}))
        trained(model, updates=1)
    half = torch.bfloat16
    assert seen == {"auto": half if has else torch.float32, "bfloat16": half, "float32": torch.float32}


def test_compilation_asks_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """And names what to do without one."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ResourceError, match=r"no-such-compiler is not there.*compiled=false"):
        make_model(compiled=True)


def test_a_compiled_model_is_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that only traces: same weights by name, same learning, and the averaged copy is compiled as well."""
    compiled: list[int] = []

    def trace(module: torch.nn.Module, *_: Any, **__: Any) -> None:
        compiled.append(id(module))
        module._compiled_call_impl = module.forward

    monkeypatch.setattr("torch.nn.Module.compile", trace)
    monkeypatch.setattr("world_models.denoiser.require_compiler", lambda: None)
    plain, fast = make_model(), make_model(compiled=True)
    one, two = trained(plain), trained(fast)
    assert list(one) == list(two)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert len(set(compiled)) == 2


def test_the_seed_recipe_is_diamonds() -> None:
    """Values of DIAMOND's Atari agent (arXiv:2405.12399, table 3 and its released config), as a group of the config."""
    from configs.loader import load_config
    from configs.schema import PretrainConfig

    config = load_config(
        PretrainConfig, ["obs_model", "data=d", "world_model/obs_model=diamond"]
    ).world_model.obs_model
    assert isinstance(config, ObsModelConfig)
    assert (config.noise_mean, config.noise_std) == (-0.4, 1.2)
    assert (config.sigma_min, config.sigma_max, config.sigma_data, config.offset_noise) == (
        2e-3,
        20.0,
        0.5,
        0.3,
    )
    assert (config.sampler, config.sampling_steps, config.sampling_sigma_max) == ("euler", 3, 5.0)
    assert (config.target, config.history, config.fold, config.channels) == ("frame", 4, 1, [64] * 4)
    assert (config.layers_per_block, config.batch, config.learning_rate) == (2, 32, 1e-4)
    assert config.unit_start
    assert config.conditioning_noise == 0.0
