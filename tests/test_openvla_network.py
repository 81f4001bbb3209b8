"""The network against forwards that share no code with it: transformers' own towers and language model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

transformers = pytest.importorskip("transformers")

from configs.openvla import OpenVLAConfig  # noqa: E402
from policies.openvla.images import IMAGENET, SIGLIP, ImagePreparation  # noqa: E402
from policies.openvla.prompts import prompt_text  # noqa: E402
from tests.openvla_helper import (  # noqa: E402
    BINS,
    PATCH,
    ROWS,
    SIZE,
    VOCABULARY,
    WIDTH,
    checkpoint_weights,
    make,
    make_spec,
    observe,
    write_checkpoint,
)

Weights = dict[str, Tensor]
LETTERS = {chr(code): 3 + i for i, code in enumerate(range(32, 127))} | {"\n": 98}
BLANK = 99


def weights() -> Weights:
    return {name: tensor.float() for name, tensor in checkpoint_weights().items()}


def split_qkv(own: Weights, block: str, target: str) -> Weights:
    parts = {}
    for kind in ("weight", "bias"):
        for name, part in zip(
            ("query", "key", "value"), own[f"{block}.attn.qkv.{kind}"].chunk(3), strict=True
        ):
            parts[target.format(name, kind)] = part
    return parts


def dinov2(own: Weights) -> torch.nn.Module:
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=16, mlp_ratio=2, image_size=SIZE, patch_size=PATCH,
        num_register_tokens=4, layer_norm_eps=1e-6, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Dinov2WithRegistersModel(config).eval()
    state = model.state_dict()
    own = {k.removeprefix("vision_backbone.featurizer."): v for k, v in own.items()}
    state["embeddings.cls_token"] = own["cls_token"]
    state["embeddings.register_tokens"] = own["reg_token"]
    state["embeddings.position_embeddings"] = torch.cat([torch.zeros(1, 1, WIDTH), own["pos_embed"]], dim=1)
    for kind in ("weight", "bias"):
        state[f"embeddings.patch_embeddings.projection.{kind}"] = own[f"patch_embed.proj.{kind}"]
    layers = sorted({k.rsplit("norm1.weight")[0] for k in state if k.endswith("norm1.weight")})
    for number, layer in enumerate(layers):
        block = f"blocks.{number}"
        for kind in ("weight", "bias"):
            for name, part in zip(
                ("query", "key", "value"), own[f"{block}.attn.qkv.{kind}"].chunk(3), strict=True
            ):
                (key,) = [
                    k
                    for k in state
                    if k.startswith(layer) and k.endswith((f".{name}.{kind}", f".{name[0]}_proj.{kind}"))
                ]
                state[key] = part
            (key,) = [
                k
                for k in state
                if k.startswith(layer) and k.endswith((f"attention.output.dense.{kind}", f"o_proj.{kind}"))
            ]
            state[key] = own[f"{block}.attn.proj.{kind}"]
            for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                state[f"{layer}{name}.{kind}"] = own[f"{block}.{name}.{kind}"]
        for name in ("1", "2"):
            state[f"{layer}layer_scale{name}.lambda1"] = own[f"{block}.ls{name}.scale_factor"]
    model.load_state_dict(state)
    return model


def siglip(own: Weights) -> torch.nn.Module:
    config = transformers.SiglipVisionConfig(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=3, num_attention_heads=16, image_size=SIZE,
        patch_size=PATCH, hidden_act="gelu", layer_norm_eps=1e-6, vision_use_head=False,
    )  # fmt: skip
    model = transformers.SiglipVisionModel(config).eval()
    own = {k.removeprefix("vision_backbone.fused_featurizer."): v for k, v in own.items()}
    state = model.state_dict()
    prefix = next(k for k in state if k.endswith("embeddings.patch_embedding.weight")).split("embeddings")[0]
    state[f"{prefix}embeddings.position_embedding.weight"] = own["pos_embed"][0]
    for kind in ("weight", "bias"):
        state[f"{prefix}embeddings.patch_embedding.{kind}"] = own[f"patch_embed.proj.{kind}"]
        for number in range(3):
            layer, block = f"{prefix}encoder.layers.{number}.", f"blocks.{number}."
            for name, part in zip("qkv", own[f"{block}attn.qkv.{kind}"].chunk(3), strict=True):
                state[f"{layer}self_attn.{name}_proj.{kind}"] = part
            names = {"self_attn.out_proj": "attn.proj", "layer_norm1": "norm1", "layer_norm2": "norm2"}
            for theirs, ours in {**names, "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}.items():
                state[f"{layer}{theirs}.{kind}"] = own[f"{block}{ours}.{kind}"]
    model.load_state_dict(state)
    return model


def language_model(own: Weights) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=ROWS, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(
        {k.removeprefix("language_model."): v for k, v in own.items() if k.startswith("language_model.")}
    )
    return model


def prompt_ids(instruction: str) -> Tensor:
    return torch.tensor([[1, *(LETTERS[letter] for letter in prompt_text(instruction)), BLANK]])


def prompt_embeddings(own: Weights, frame: Tensor, instruction: str) -> Tensor:
    """Begin token, patches, prompt."""
    pixels = frame.permute(2, 0, 1).float() / 255
    towers = []
    for build, (mean, deviation), front in ((dinov2, IMAGENET, 5), (siglip, SIGLIP, 0)):
        normalised = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[:, None, None]
        output = build(own)(normalised[None], output_hidden_states=True)
        towers.append(output.hidden_states[-2][:, front:])
    x = torch.cat(towers, dim=-1)
    for number in (1, 2, 3):
        x = torch.nn.functional.linear(
            x, own[f"projector.fc{number}.weight"], own[f"projector.fc{number}.bias"]
        )
        x = torch.nn.functional.gelu(x) if number < 3 else x
    words = own["language_model.model.embed_tokens.weight"][prompt_ids(instruction)]
    return torch.cat([words[:, :1], x, words[:, 1:]], dim=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("openvla") / "base")


def config(base: Path, **changes: object) -> OpenVLAConfig:
    return OpenVLAConfig(base=str(base), unnorm_key="bridge", chunk=2, replan=2, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("decoding", ["autoregressive", "parallel"])
@torch.no_grad()
def test_logits_equal_an_independent_forward(base: Path, decoding: str) -> None:
    policy, own = make(config(base, decoding=decoding)), weights()
    obs = observe(policy, 2)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, BINS, (2, 2, 3)))
    logits = policy(obs, tokens).logits
    model = language_model(own)
    embedding = own["language_model.model.embed_tokens.weight"]
    for row in range(2):
        prompt = prompt_embeddings(own, obs.images["top"][row], policy.spec.instructions[row])
        if decoding == "autoregressive":
            taken = embedding[VOCABULARY - 1 - tokens[row].flatten()[:-1]][None]
            answer = model(inputs_embeds=torch.cat([prompt, taken], dim=1))
        else:
            behind = torch.cat([torch.zeros(1, 6, WIDTH), embedding[2][None, None]], dim=1)
            sequence = torch.cat([prompt, behind], dim=1)
            both_ways = torch.ones(1, 1, sequence.shape[1], sequence.shape[1], dtype=torch.bool)
            answer = model(inputs_embeds=sequence, attention_mask=both_ways)
        first = prompt.shape[1] - 1
        ids = torch.arange(VOCABULARY - 1, VOCABULARY - 1 - BINS, -1)
        expected = answer.logits[0, first : first + 6][:, ids].reshape(2, 3, BINS)
        assert torch.allclose(logits[row], expected, atol=1e-4)
        assert expected.std() > 0.1


@pytest.mark.parametrize("decoding", ["autoregressive", "parallel"])
@torch.no_grad()
def test_slim_logits_equal_the_full_ones_bit_for_bit(base: Path, decoding: str) -> None:
    slim, full = (make(config(base, decoding=decoding, slim=slim)) for slim in (True, False))
    head = "network.language_model.lm_head.weight"
    assert slim.state_dict()[head].shape == (BINS, WIDTH)
    assert full.state_dict()[head].shape == (ROWS, WIDTH)
    for count in (1, 7):
        obs = observe(slim, count)
        tokens = torch.randint(0, BINS, (count, 2, 3))
        assert torch.equal(slim(obs, tokens).logits, full(obs, tokens).logits)
        acted = [policy.act(obs, greedy=True) for policy in (slim, full)]
        assert torch.equal(acted[0].tokens, acted[1].tokens)
        assert torch.equal(acted[0].log_probs, acted[1].log_probs)


@pytest.mark.parametrize("size", [(48, 64), (20, 20), (32, 32)])
def test_frames_are_resized_as_pillow_does(size: tuple[int, int]) -> None:
    frame = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    resized = np.asarray(Image.fromarray(frame).resize((SIZE, SIZE), Image.Resampling.BICUBIC)).astype(float)
    prepare = ImagePreparation((SIZE,), SIGLIP[:1], SIGLIP[1:])
    (ours,) = prepare(torch.from_numpy(frame)[None])
    assert ours.dtype == torch.float32
    levels = (ours[0] * 0.5 + 0.5).permute(1, 2, 0).numpy() * 255
    assert np.abs(levels - resized).max() <= 1.01


def test_the_crop_keeps_the_centre() -> None:
    frame = torch.zeros(1, 40, 40, 3, dtype=torch.uint8)
    frame[:, 10:30, 10:30] = 255
    (seen,) = ImagePreparation((20,), SIGLIP[:1], SIGLIP[1:], area=0.25)(frame)
    assert torch.equal(seen, torch.ones(1, 3, 20, 20))


def test_every_camera_is_seen(base: Path) -> None:
    policy = make(config(base), make_spec(("top", "wrist")))
    obs = observe(policy, 1)
    before = policy(obs).logits
    for camera in ("top", "wrist"):
        changed = observe(policy, 1)
        changed.images[camera] = 255 - obs.images[camera]
        assert not torch.allclose(policy(changed).logits, before, atol=1e-3)
