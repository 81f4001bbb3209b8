"""Acting and learning agree: recorded and recomputed log-probabilities, caches, padding, precision, frozen parts."""

import pytest
import torch

pytest.importorskip("transformers")

from configs.openvla import OpenVLAConfig
from policies.openvla.policy import OpenVLA
from tests.openvla_helper import BINS, make, observe, small

DECODINGS = ["parallel", "autoregressive"]
pytestmark = pytest.mark.filterwarnings("ignore:.*adapter.*")


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("towers", ["siglip", "dinosiglip"])
def test_recorded_log_probs_are_recomputed(decoding: str, towers: str) -> None:
    policy = make(small(decoding=decoding, towers=towers, proprio=True)).eval()
    obs = observe(policy, 6)
    tokens, log_probs, values = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(1))
    assert tokens.shape == log_probs.shape == (6, 2, 3)
    assert log_probs.dtype == values.dtype == torch.float32
    assert int(tokens.max()) < BINS
    policy.train()
    whole, _ = policy.log_probs(obs, tokens)
    assert torch.allclose(whole, log_probs, atol=1e-4)
    assert torch.allclose(policy.value(policy.features(obs)), values, atol=1e-4)
    output = policy(obs, tokens)
    assert torch.allclose(output.features, policy.features(obs), atol=1e-4)
    for rows in (slice(0, 1), slice(1, 4), slice(5, 6)):
        part, _ = policy.log_probs(obs.take(rows), tokens[rows])
        assert torch.allclose(part, log_probs[rows], atol=1e-4)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_padding_changes_nothing(decoding: str) -> None:
    """The shorter prompt stands padded beside the longer one, and alone without padding."""
    policy = make(small(decoding=decoding))
    obs = observe(policy, 2)
    tokens = torch.randint(0, BINS, (2, 2, 3), generator=torch.Generator().manual_seed(0))
    alone = make(small(decoding=decoding))
    alone.prompt_ids = policy.prompt_ids[:1, ~_padding(policy)]
    alone.prompt_kept = policy.prompt_kept[:1, ~_padding(policy)]
    assert int(_padding(policy).sum()) > 0
    shorter = obs.take(slice(0, 1))
    assert torch.allclose(alone(shorter, tokens[:1]).logits[0], policy(obs, tokens).logits[0], atol=1e-4)


def _padding(policy: OpenVLA) -> torch.Tensor:
    return ~policy.prompt_kept[0]


def test_decoding_with_cache_equals_decoding_without_token_by_token() -> None:
    policy = make(small(decoding="autoregressive"))
    obs = observe(policy, 3)
    noise = torch.empty(3, 2, 3, BINS).exponential_(generator=torch.Generator().manual_seed(2))
    for greedy in (True, False):
        tokens, log_probs, _ = policy.act(obs, greedy=greedy, noise=None if greedy else noise)
        known = torch.zeros(3, 2, 3, dtype=torch.int64)
        for place in range(6):
            with torch.no_grad():
                log_p = policy(obs, known).logits.flatten(1, 2)[:, place].log_softmax(dim=-1)
            drawn = log_p if greedy else log_p - noise.flatten(1, 2)[:, place].log()
            known.view(3, 6)[:, place] = drawn.argmax(dim=-1)
            chosen = log_p.gather(1, known.view(3, 6)[:, place : place + 1])[:, 0]
            assert torch.allclose(chosen, log_probs.flatten(1)[:, place], atol=1e-4)
        assert torch.equal(known, tokens)


def test_a_chain_looks_back_and_parallel_places_do_not() -> None:
    for decoding, depends in (("autoregressive", True), ("parallel", False)):
        policy = make(small(decoding=decoding))
        obs = observe(policy, 1)
        tokens = torch.full((1, 2, 3), 5)
        other = tokens.clone()
        other[0, 0, 1] = 200
        one, two = (policy(obs, x).logits.flatten(1, 2)[0] for x in (tokens, other))
        assert torch.allclose(one[:2], two[:2], atol=1e-5)
        assert (not torch.allclose(one[2:], two[2:], atol=1e-3)) == depends
        assert torch.allclose(policy(obs, tokens).features, policy(obs, other).features, atol=1e-5)


def test_equal_noise_gives_equal_tokens() -> None:
    policy = make(small(decoding="autoregressive"))
    obs = observe(policy, 4)
    noise = torch.empty(4, 2, 3, BINS).exponential_(generator=torch.Generator().manual_seed(3))
    whole = policy.act(obs, greedy=False, noise=noise).tokens
    parts = [
        policy.act(obs.take(slice(i, i + 1)), greedy=False, noise=noise[i : i + 1]).tokens for i in range(4)
    ]
    assert torch.equal(whole, torch.cat(parts))
    by_seed = [
        policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(7)).tokens for _ in range(2)
    ]
    assert torch.equal(*by_seed)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_losses_train_their_own_part(decoding: str) -> None:
    policy = make(small(decoding=decoding))
    obs, tokens = observe(policy, 2), torch.zeros(2, 2, 3, dtype=torch.int64)
    policy.log_probs(obs, tokens)[0].sum().backward()
    assert all(each.grad is None for each in policy.critic_parameters())
    assert all(each.grad is not None for each in policy.actor_parameters())
    policy.zero_grad(set_to_none=True)
    policy.value(policy(obs, tokens).features).sum().backward()
    assert all(each.grad is None for each in policy.actor_parameters())
    assert all(each.grad is not None for each in policy.critic_parameters())


@pytest.mark.parametrize("decoding", DECODINGS)
def test_gradient_checkpointing_changes_memory_only(decoding: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        policy = make(small(decoding=decoding, checkpointing=checkpointing)).train()
        policy.log_probs(observe(policy, 2), torch.zeros(2, 2, 3, dtype=torch.int64))[0].sum().backward()
        gradients.append([each.grad for each in policy.actor_parameters()])
    for one, two in zip(*gradients, strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def lora(**changes: object) -> OpenVLAConfig:
    pytest.importorskip("peft")
    return small(lora_rank=2, freeze_vision=True, **changes)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_lora_starts_as_the_identity_and_trains_alone(decoding: str) -> None:
    plain, adapted = make(small(decoding=decoding)), make(lora(decoding=decoding))
    own = {
        n: x for n, x in plain.state_dict().items() if not n.startswith("network.language_model.model.layers")
    }
    adapted.load_state_dict(own, strict=False)
    for name, weight in plain.state_dict().items():
        target = name if name in adapted.state_dict() else name.replace(".weight", ".base_layer.weight")
        adapted.state_dict()[target].copy_(weight)
    obs, tokens = observe(plain, 2), torch.zeros(2, 2, 3, dtype=torch.int64)
    assert torch.allclose(plain(obs, tokens).logits, adapted(obs, tokens).logits, atol=1e-5)
    trained = {n for n, x in adapted.network.named_parameters() if x.requires_grad}
    assert {n.split(".")[0] for n in trained} == {"projector", "language_model"}
    assert all(
        "lora_" in n or n == "language_model.lm_head.weight" for n in trained if n.startswith("language")
    )
    assert sum("lora_A" in n for n in trained) == 2 * 7


@pytest.mark.parametrize("decoding", DECODINGS)
def test_half_precision_holds_frozen_weights_and_its_gap_is_small(decoding: str) -> None:
    policy = make(lora(decoding=decoding, frozen_dtype="bfloat16"))
    dtypes = {x.requires_grad: set() for x in policy.parameters()}  # type: ignore[var-annotated]
    for each in policy.parameters():
        dtypes[each.requires_grad].add(each.dtype)
    assert dtypes == {True: {torch.float32}, False: {torch.bfloat16}}
    obs = observe(policy, 4)
    tokens, log_probs, _ = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(0))
    again, _ = policy.log_probs(obs, tokens)
    assert float((again - log_probs).detach().abs().max()) < 0.1
    assert policy(obs, tokens).logits.dtype == torch.float32
