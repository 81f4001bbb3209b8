"""What acts and is trained is softmax(logits / temperature), for every kind of policy; weights remember theirs."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from configs.loader import config_from_dict, config_to_dict, load_config
from configs.openvla import OpenVLAConfig
from configs.pi0 import PI0Config
from configs.policy import PolicyConfig, SmallVLAConfig
from configs.schema import EvaluateConfig
from policies.base import make_policy, token_log_probs
from tests.openvla_helper import make_spec, observe, small

SIZES = {"chunk": 2, "replan": 2}
KINDS: dict[str, tuple[type[PolicyConfig], dict[str, object]]] = {
    "small_vla": (SmallVLAConfig, {**SIZES, "bins": 256}),
    "parallel": (OpenVLAConfig, vars(small(decoding="parallel"))),
    "autoregressive": (OpenVLAConfig, vars(small(decoding="autoregressive"))),
    "l1": (OpenVLAConfig, vars(small(head="l1"))),
    "pi0": (PI0Config, SIZES),
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_divided_wherever_tokens_are_chosen_or_judged(kind: str) -> None:
    config, fields = KINDS[kind]
    policies = []
    for temperature in (1.0, 0.25):
        torch.manual_seed(0)
        policies.append(make_policy(config(**{**fields, "temperature": temperature}), make_spec()).eval())
        for name, weights in policies[-1].named_parameters():
            if name in ("actor.head.weight", "actor.head_bias"):
                torch.nn.init.normal_(weights, generator=torch.Generator().manual_seed(1))
    plain, sharp = policies
    obs = observe(plain, 3)
    noise = torch.empty(3, 2, 3, 256).exponential_(generator=torch.Generator().manual_seed(2))
    tokens, recorded, _ = sharp.act(obs, greedy=False, noise=noise)
    with torch.no_grad():
        logits = plain(obs, tokens).logits
        assert float(logits.std(-1).min()) > 0
        assert torch.allclose(sharp(obs, tokens).logits, 4 * logits, rtol=1e-4, atol=1e-4)
        expected, _ = token_log_probs(4 * logits, tokens)
        recomputed, _ = sharp.log_probs(obs, tokens)
    assert torch.equal(tokens, (4 * logits - noise.log()).argmax(-1))
    assert torch.allclose(recorded, expected, atol=1e-4)
    assert torch.allclose(recomputed, expected, atol=1e-4)


@pytest.mark.parametrize("config", [SmallVLAConfig, OpenVLAConfig, PI0Config])
def test_weights_bring_theirs_unless_another_is_given(config: type[PolicyConfig], tmp_path: Path) -> None:
    assert config().temperature is None
    assert config(path=str(tmp_path)).temperature == 1
    for stored, expected in (({"temperature": 0.4}, 0.4), ({"temperature": None}, 1.0), ({}, 1.0)):
        (tmp_path / "config.json").write_text(json.dumps({"model": "policy", "config": stored}))
        assert config(path=str(tmp_path)).temperature == expected
        assert config(path=str(tmp_path), temperature=0.7).temperature == 0.7


def test_a_command_line_takes_that_of_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model": "policy", "config": {"temperature": 0.4}}))
    for extra, expected in (([], 0.4), (["policy.temperature=0.7"], 0.7)):
        read = load_config(EvaluateConfig, [f"policy.path={tmp_path}", *extra])
        assert read.policy.temperature == expected
        assert config_from_dict(EvaluateConfig, config_to_dict(read)).policy.temperature == expected
