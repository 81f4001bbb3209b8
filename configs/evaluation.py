"""Config of an evaluation apart from training."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.fields import NaturalInt, PositiveFloat, PositiveInt, Seed, component

Choice = Literal["greedy", "sampled"]
ActorName = Literal["policy", "expert", "still"]
Perturbation = Literal["lan", "object", "swap", "task"]


@component
class TrialsConfig:
    """Which trials there are, who acts in them, and how many run at once."""

    trials: PositiveInt = 50
    """Per task. Trial k of LIBERO starts from init state k of its task's file, elsewhere from ``seed`` + k."""
    seed: Seed = 1_000_000
    """First seed of the held-out starts; LIBERO's are numbered."""
    tasks: list[NaturalInt] = field(default_factory=list)
    """Tasks by their place among those of ``env``; empty takes all."""
    choices: Annotated[list[Choice], Field(min_length=1)] = field(default_factory=lambda: ["greedy"])
    """How the policy chooses its actions; each is a table of its own."""
    actor: ActorName = "policy"
    """``policy``: that of ``policy.path``. ``expert``: the scripted demonstrator, who sees the simulator's state. ``still``
    never moves: what succeeds then needs no policy."""
    perturbations: list[Perturbation] = field(default_factory=list)
    """LIBERO-PRO's suites beside that of ``env``, for a table of robustness: other words, other objects, swapped places,
    another task."""
    workers: PositiveInt = 1
    """Processes. Each trial is computed by itself, so the results do not depend on their number."""
    videos: bool = True
    """An mp4 of each trial: the frames that the policy saw."""
    trial_s: PositiveFloat = 1800.0
    """Seconds after which a trial that does not end is an error."""

    def __post_init__(self) -> None:
        self.tasks = list(dict.fromkeys(self.tasks))
        self.choices = list(dict.fromkeys(self.choices))
        self.perturbations = list(dict.fromkeys(self.perturbations))
