"""From leased records to a flat batch of decisions with advantages and returns.

Shape letters: R records, T decisions (padded), N decisions in the flat batch, K actions, D action dimensions, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from configs.algorithm import AlgorithmConfig

from .acceleration import place_of
from .context import Context
from .envs.base import Observation
from .staleness import lag_mask

if TYPE_CHECKING:
    import torch

    from buffers.records import RecordBatch
    from policies.advantages import AdvantageStatistics
    from policies.base import ObservationTensors, Policy
    from policies.proximal import Age

T = TypeVar("T")
_FORWARD_ROWS = 512


class Evened(Protocol):
    """Adds None to a list of forwards as often as other ranks need this one to run along."""

    def __call__(self, pieces: list[T], /) -> list[T | None]:
        """The list that is to be run; answers beyond the own pieces are dropped."""
        ...


@dataclass
class DecisionBatch:
    """N decisions, flat."""

    observations: ObservationTensors
    tokens: torch.Tensor
    """``[N, K, D]`` int64"""
    log_probs: torch.Tensor
    """``[N, K, D]`` of the behaviour."""
    valid: torch.Tensor
    """``[N, K]``"""
    advantages: torch.Tensor
    """``[N]``"""
    returns: torch.Tensor
    """``[N]``"""
    old_values: torch.Tensor
    """``[N]`` of the behaviour."""
    features: torch.Tensor
    """``[N, F]``: what the critic reads, computed once for the whole turn."""
    lag: torch.Tensor
    """``[N]`` int64, in versions."""
    version: NDArray[np.int32]
    """``[M]`` of all leased decisions, those beyond the bound too."""
    present: NDArray[np.bool_]
    """``[M]``"""
    anchor_logits: torch.Tensor | None = None
    """``[N, K, D, bins]`` of the anchor, where the objective has one and the policy trains."""
    advantage_std: float = 0.0
    """Of all ranks' decisions, as ``return_mean`` is."""
    return_mean: float = 0.0
    proximal_log_probs: torch.Tensor | None = None
    """``[N, K, D]`` of the weights at the start of the turn, where the objective asks for them."""
    first: int = 0
    """Decisions of the ranks before this one: this batch's place in the joined one."""
    joined: int = 0
    """Decisions of all ranks."""
    spare: ObservationTensors | None = None
    """Any one observation, where decisions may have to be filled up."""
    is_blank: bool = False
    """Whether it stands for nothing and is only there to be computed."""

    @property
    def blank(self) -> DecisionBatch:
        """One decision of which nothing counts."""
        assert self.spare is not None, "a turn's batch has one"

        def nothing(x: torch.Tensor) -> torch.Tensor:
            return x.new_zeros((1, *x.shape[1:]))

        return DecisionBatch(
            self.spare, nothing(self.tokens), nothing(self.log_probs), nothing(self.valid), nothing(self.advantages),
            nothing(self.returns), nothing(self.old_values), nothing(self.features), nothing(self.lag), self.version,
            self.present, is_blank=True,
            anchor_logits=None if self.anchor_logits is None else nothing(self.anchor_logits),
            proximal_log_probs=None if self.proximal_log_probs is None else nothing(self.proximal_log_probs),
        )  # fmt: skip

    @property
    def age(self) -> Age:
        """How old the decisions are, for the objective."""
        from policies.proximal import Age

        return Age(self.lag, self.proximal_log_probs)

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def slices(self, rows: int) -> list[slice]:
        """All decisions, at most ``rows`` at a time."""
        return [slice(start, start + rows) for start in range(0, len(self), rows)]

    def seen(self, rows: slice | None) -> tuple[ObservationTensors, torch.Tensor]:
        """What an actor reads of ``rows``; of the blank decision where there are none."""
        if rows is None:
            return self.blank.observations, self.blank.tokens
        return self.observations.take(rows), self.tokens[rows]

    def take(self, index: torch.Tensor) -> DecisionBatch:
        """Rows ``index``."""
        return DecisionBatch(
            self.observations.take(index), self.tokens[index], self.log_probs[index], self.valid[index],
            self.advantages[index], self.returns[index], self.old_values[index], self.features[index],
            self.lag[index], self.version, self.present,
            anchor_logits=None if self.anchor_logits is None else self.anchor_logits[index],
            proximal_log_probs=None if self.proximal_log_probs is None else self.proximal_log_probs[index],
        )  # fmt: skip


def decision_batch(
    context: Context,
    batches: list[RecordBatch],
    policy: Policy,
    algorithm: AlgorithmConfig,
    *,
    version: int,
    bound: int,
    discount: float,
    evened: Evened,
) -> DecisionBatch:
    """Values with the newest critic (or the recorded ones), GAE per record, one normalisation over all of them, whichever
    rank holds them.

    Decisions that lag more than ``bound`` versions are left out. ``evened`` adds to a list of forwards what other ranks
    need to run along. Raises nothing of its own; a negative lag asserts.
    """
    import torch

    features = _features(context, batches, policy, evened)
    parts = [
        _record_part(context, batch, found, policy, algorithm, version, bound, discount)
        for batch, found in zip(batches, features, strict=True)
    ]
    joined = {key: torch.cat([part[key] for part in parts]) for key in _TENSORS}
    advantages, returns = (_over_ranks(context, joined[key]) for key in ("advantages", "returns"))
    if algorithm.normalize_advantages:
        joined["advantages"] = _normalized(joined["advantages"], advantages)
    first, total = place_of(context.device, len(joined["tokens"]))
    observations = _join_observations([part["observations"] for part in parts])
    return DecisionBatch(
        observations=observations.to(context.torch_device),
        **{key: value.to(context.torch_device) for key, value in joined.items()},
        version=np.concatenate([batch.version.ravel() for batch in batches]),
        present=np.concatenate([batch.decisions.ravel() for batch in batches]),
        advantage_std=advantages.deviation,
        return_mean=returns.mean,
        first=first,
        joined=total,
        is_blank=False,
        spare=context.tensors(_observation(batches[0], np.zeros(1, np.int64), np.zeros(1, np.int64))),
    )


_TENSORS = ("tokens", "log_probs", "valid", "advantages", "returns", "old_values", "features", "lag")


def _record_part(
    context: Context,
    batch: RecordBatch,
    features: torch.Tensor,
    policy: Policy,
    algorithm: AlgorithmConfig,
    version: int,
    bound: int,
    discount: float,
) -> dict[str, Any]:
    import torch

    from policies.advantages import gae

    values = _values(batch, features, policy, recompute=algorithm.recompute_values)
    if algorithm.value_range is not None:
        values = values.clamp(*algorithm.value_range)
    out_of_time = batch.truncated & ~batch.imagined & (algorithm.time_limit == "end")
    advantages, returns = gae(
        torch.from_numpy(np.array(batch.rewards)), values, torch.from_numpy(batch.terminated | out_of_time),
        torch.from_numpy(np.array(batch.lengths)), discount, algorithm.gae_lambda,
    )  # fmt: skip
    kept = lag_mask(batch.version, batch.decisions, version, bound)
    rows, columns = np.nonzero(kept)
    observation = _observation(batch, rows, columns)
    mask = torch.from_numpy(kept)
    return {
        "observations": context.tensors(observation),
        "tokens": torch.from_numpy(batch.tokens[kept].astype(np.int64)),
        "log_probs": torch.from_numpy(np.array(batch.log_probs[kept])),
        "valid": torch.from_numpy(np.array(batch.valid[kept])),
        "advantages": advantages[mask],
        "returns": returns[mask],
        "old_values": torch.from_numpy(np.array(batch.values[kept])),
        "features": features[:, :-1][mask],
        "lag": torch.from_numpy((version - batch.version[kept]).astype(np.int64)),
    }


def proximal_log_probs(batch: DecisionBatch, policy: Policy, evened: Evened) -> torch.Tensor:
    """``[N, K, D]``: of the batch's tokens by ``policy``, float32, without gradient."""
    import torch

    pieces = batch.slices(_FORWARD_ROWS)
    with torch.no_grad():
        found = [policy.log_probs(*batch.seen(rows))[0] for rows in evened(pieces)]
    return torch.cat(found[: len(pieces)]) if pieces else torch.empty_like(batch.log_probs)


def _observation(batch: RecordBatch, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Observation:
    return Observation(
        {name: frames[rows, columns] for name, frames in batch.images.items()},
        batch.proprio[rows, columns],
        [batch.instructions[row] for row in rows],
    )


@dataclass(frozen=True)
class _Places:
    """Observations of a batch of records: where they lie in it."""

    batch: RecordBatch
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    def cut(self, size: int) -> list[_Places]:
        return [
            _Places(self.batch, self.rows[start : start + size], self.columns[start : start + size])
            for start in range(0, len(self.rows), size)
        ]


def _features(
    context: Context, batches: list[RecordBatch], policy: Policy, evened: Evened
) -> list[torch.Tensor]:
    """``[R, T+1, F]`` of each batch by the newest actor, on the CPU; zeros behind a record's bootstrap observation."""
    import torch

    seen = [
        _Places(batch, *np.nonzero(np.arange(batch.tokens.shape[1] + 1)[None, :] <= batch.lengths[:, None]))
        for batch in batches
    ]
    pieces = [piece for places in seen for piece in places.cut(_FORWARD_ROWS)]
    with torch.no_grad():
        computed = [
            policy.features(context.tensors(_observation(piece.batch, piece.rows, piece.columns)))
            .float()
            .cpu()
            for piece in (each or pieces[0].cut(1)[0] for each in evened(pieces))
        ]
    flat = torch.cat(computed[: len(pieces)])
    answer = []
    for places, own in zip(seen, torch.split(flat, [len(places.rows) for places in seen]), strict=True):
        shape = places.batch.tokens.shape
        features = torch.zeros(shape[0], shape[1] + 1, flat.shape[1])
        features[torch.from_numpy(places.rows), torch.from_numpy(places.columns)] = own
        answer.append(features)
    return answer


def _values(batch: RecordBatch, features: torch.Tensor, policy: Policy, *, recompute: bool) -> torch.Tensor:
    """``[R, T+1]``; the bootstrap value is always the newest critic's, since nobody recorded one."""
    import torch

    with torch.no_grad():
        values = policy.value(features.to(next(policy.critic_parameters()).device)).cpu()
    if not recompute:
        decided = torch.from_numpy(np.array(batch.decisions))
        values[:, :-1] = torch.where(decided, torch.from_numpy(np.array(batch.values)), values[:, :-1])
    return values


def _over_ranks(context: Context, numbers: torch.Tensor) -> AdvantageStatistics:
    import torch

    from policies.advantages import AdvantageStatistics

    every = torch.ones_like(numbers, dtype=torch.bool)
    return AdvantageStatistics.of(numbers, every).all_reduced(context.torch_device)


def _normalized(advantages: torch.Tensor, statistics: AdvantageStatistics) -> torch.Tensor:
    import torch

    from policies.advantages import normalize

    return normalize(advantages, torch.ones_like(advantages, dtype=torch.bool), statistics)


def _join_observations(parts: list[ObservationTensors]) -> ObservationTensors:
    import torch

    from policies.base import ObservationTensors

    return ObservationTensors(
        {name: torch.cat([part.images[name] for part in parts]) for name in parts[0].images},
        torch.cat([part.proprio for part in parts]),
        torch.cat([part.instruction_ids for part in parts]),
    )
