"""What every role of one run agrees on: the config, the shapes, the vocabulary; and how its models are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from buffers.records import RecordSpec
from configs.env import EnvConfig
from configs.errors import CheckpointError, ResourceError
from configs.policy import PolicyConfig
from configs.world_model import WorldModelConfig

from .envs import env_spec
from .envs.base import EnvSpec

if TYPE_CHECKING:
    import torch

    from policies.base import ObservationTensors, Policy, PolicySpec
    from policies.instructions import InstructionVocabulary
    from policies.tokens import ActionTokenizer
    from world_models.base import ModelSpec
    from world_models.obs_model import ObservationModel
    from world_models.reward_model import SuccessModel

    from .envs.base import Observation

POLICY, OBS_MODEL, REWARD_MODEL = "policy", "obs_model", "reward_model"
ANCHOR, BEST = "anchor", "best"
"""The policy that the run started from; the one that evaluated best during the run."""
FILM = "film"
"""The newest film strip of the models, which travels by the weight store."""


class HasModels(Protocol):
    """The parts of a command's config that a context needs."""

    env: EnvConfig
    policy: PolicyConfig
    world_model: WorldModelConfig


@dataclass
class Context:
    """Shapes and makers. Picklable: an actor gets it and builds its own models."""

    env_config: EnvConfig
    policy_config: PolicyConfig
    world_model_config: WorldModelConfig
    seed: int
    device: str

    @cached_property
    def env_spec(self) -> EnvSpec:
        """What the environment offers."""
        return env_spec(self.env_config)

    def speaking(self, instructions: tuple[str, ...]) -> Context:
        """The same with another set of instructions: a policy's own vocabulary, which may be larger than the environment's."""
        context = replace(self)
        vars(context)["env_spec"] = replace(self.env_spec, instructions=instructions)
        return context

    @cached_property
    def record_spec(self) -> RecordSpec:
        """Shapes of every record of the run."""
        spec, policy = self.env_spec, self.policy_config
        return RecordSpec(
            cameras=spec.cameras,
            proprio_dim=spec.proprio_dim,
            chunk=policy.chunk,
            replan=policy.replan,
            action_dim=spec.action_dim,
            bins=policy.bins,
            max_decisions=-(-spec.max_episode_steps // policy.replan),
            between=self.model_steps > 1,
        )

    @property
    def model_steps(self) -> int:
        """Steps of M_obs in a decision."""
        return self.policy_config.replan if self.world_model_config.obs_model.step == "env_step" else 1

    @property
    def history(self) -> int:
        """Observations of decisions that M_obs looks back on, the present one among them."""
        return self.decisions_of(self.world_model_config.obs_model.history)

    def decisions_of(self, steps: int) -> int:
        """Decisions that hold so many steps of M_obs."""
        return -(-steps // self.model_steps)

    @cached_property
    def policy_spec(self) -> PolicySpec:
        """What the policy is built for."""
        from policies.base import PolicySpec

        spec, policy = self.env_spec, self.policy_config
        return PolicySpec(
            cameras=spec.cameras,
            proprio_dim=spec.proprio_dim,
            chunk=policy.chunk,
            replan=policy.replan,
            action_dim=spec.action_dim,
            bins=policy.bins,
            action_low=spec.action_low,
            action_high=spec.action_high,
            instructions=spec.instructions,
        )

    @cached_property
    def vocabulary(self) -> InstructionVocabulary:
        """Words of the environment's instructions."""
        from policies.instructions import InstructionVocabulary

        return InstructionVocabulary(self.env_spec.instructions)

    @cached_property
    def tokenizer(self) -> ActionTokenizer:
        """Action tokens to env actions and back."""
        from policies.action_tokens import action_tokenizer

        return action_tokenizer(self.policy_config, self.env_spec.action_low, self.env_spec.action_high)

    @cached_property
    def model_spec(self) -> ModelSpec:
        """What the world models are built for."""
        from world_models.base import ModelSpec

        spec, policy = self.env_spec, self.policy_config
        return ModelSpec(
            cameras=spec.cameras,
            proprio_dim=spec.proprio_dim,
            chunk=policy.chunk,
            replan=policy.replan,
            action_dim=spec.action_dim,
            bins=policy.bins,
            num_words=self.vocabulary.num_words,
            instruction_length=self.vocabulary.length,
            model_steps=self.model_steps,
            doubled_last=self.tokenizer.parts < policy.bins,
        )

    def make_policy(self) -> Policy:
        """A policy; its random weights depend on the seed alone."""
        from policies.base import make_policy

        with _Seeded(self.seed):
            return make_policy(self.policy_config, self.policy_spec).to(self.torch_device)

    def make_obs_model(self) -> ObservationModel:
        """An observation model; likewise."""
        from world_models.obs_model import ObservationModel

        with _Seeded(self.seed + 1):
            return ObservationModel(self.model_spec, self.world_model_config.obs_model).to(self.torch_device)

    def make_reward_model(self, policy: Policy | None = None) -> SuccessModel:
        """A reward model; likewise. Where it looks through the policy's first layers, these are copied from ``policy``, or
        random until weights are loaded.
        """
        from policies.perception import perception
        from world_models.reward_model import PolicyRewardModel, RewardModel

        config = self.world_model_config.reward_model
        model: SuccessModel
        with _Seeded(self.seed + 2):
            if config.backbone == "own":
                model = RewardModel(self.model_spec, config)
            else:
                first_layers = perception(policy or self.make_policy())
                model = PolicyRewardModel(self.model_spec, config, first_layers)  # type: ignore[arg-type]
        return model.to(self.torch_device)

    @cached_property
    def torch_device(self) -> torch.device:
        """The device. Raises ResourceError when a GPU is asked for and there is none."""
        import torch

        require_device(self.device)
        return torch.device(self.device)

    def tensors(self, observation: Observation) -> ObservationTensors:
        """An observation as the policy takes it."""
        from policies.base import observation_tensors

        return observation_tensors(
            observation.images, observation.proprio, observation.instructions, self.vocabulary
        ).to(self.torch_device)

    def default_config(self, name: str) -> dict[str, Any]:
        """The config of a model's class, as JSON types, with every field at its default."""
        from dataclasses import asdict

        return asdict(type(self._config_of(name))())

    def default_spec(self, name: str) -> dict[str, Any]:
        """What a model's spec says where nobody says anything."""
        from dataclasses import MISSING, fields

        spec = self.policy_spec if name == POLICY else self.model_spec
        return {field.name: field.default for field in fields(spec) if field.default is not MISSING}

    def _config_of(self, name: str) -> Any:
        return {
            POLICY: self.policy_config,
            OBS_MODEL: self.world_model_config.obs_model,
            REWARD_MODEL: self.world_model_config.reward_model,
        }[name]

    def describe(self, name: str) -> dict[str, Any]:
        """The JSON that lies beside a model's weights and says what they fit."""
        from dataclasses import asdict

        config = self._config_of(name)
        spec = self.policy_spec if name == POLICY else self.model_spec
        return {"model": name, "env": self.env_spec.name, "config": asdict(config), "spec": spec.to_json()}


def make_context(config: HasModels, *, seed: int, device: str) -> Context:
    """The context of a command's config."""
    return Context(config.env, config.policy, config.world_model, seed, device)


def require_device(device: str) -> None:
    """Raise ResourceError when ``device`` is not there."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError("no CUDA device on this machine", where="run.device", remedy="use run.device=cpu")


class _Seeded:
    """Draw initial weights from a seed without touching anybody's global generator."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        import torch

        self._held = torch.random.get_rng_state()
        torch.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.random.set_rng_state(self._held)


def require_same(
    ours: dict[str, Any], theirs: dict[str, Any], folder: Path, *, ignore: frozenset[str]
) -> None:
    """Raise CheckpointError naming the first field in which a stored model differs from what the run builds."""
    for part in ("config", "spec"):
        for key, value in ours[part].items():
            stored = theirs[part].get(key)
            if key not in ignore and _plain(stored) != _plain(value):
                raise CheckpointError(
                    f"{ours['model']} was trained with {key}={stored}, this run has {key}={value}",
                    where=str(folder),
                    remedy=f"set {key} to the stored value, or train a new model",
                )


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
