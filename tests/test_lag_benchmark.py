"""The benchmark ``lag`` trains on what it says: decisions of the weights from so many updates ago."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A maker of small runs from one random policy."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from platform.context import POLICY, make_context
    from platform.models import save_model
    from platform.weights import module_arrays

    import stale_run

    from configs.loader import load_config
    from configs.schema import TrainConfig

    torch.manual_seed(0)
    context = make_context(
        load_config(TrainConfig, ["real", stale_run.ENV, *stale_run.SMALL]), seed=0, device="cpu"
    )
    save_model(tmp_path / "policy", context.describe(POLICY), module_arrays(context.make_policy()), {})
    size = stale_run.Size(0, 0, (0,), 8, 16, 2, 1, 8, 1)

    def maker(arm: str, lag: int) -> Any:
        run = stale_run.Run(stale_run.Job(arm, lag, 0, size, tmp_path / "policy", 1e-3))
        # A random policy earns nothing and a new critic says 0: without an opinion there would be no gradient.
        with torch.no_grad():
            for parameter in run.policy.critic_parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=run.generator))
        return run

    return maker


@pytest.mark.parametrize("arm", ["gipo 0.5", "ppo", "decoupled", "interpolated"])
def test_without_lag_the_first_ratio_is_one(make: Any, arm: str) -> None:
    """So observations, tokens and log-probabilities of the flat batch belong together."""
    run = make(arm, 0)
    for number in range(2):
        run.turn(number)
    assert run.updates == 2
    assert run.statistics["ratio_mean"][0] == pytest.approx(1.0, abs=1e-5)
    assert run.statistics["effective_sample_size"][0] == pytest.approx(1.0, abs=1e-5)


def test_episodes_are_played_by_the_weights_of_that_many_updates_ago(make: Any) -> None:
    """Lag 3 at two updates a turn is two turns; the first turn only warms the critic up."""
    run = make("gipo 0.5", 3)
    seen, began = [], []
    for number in range(5):
        began.append(run.policy.actor.queries.detach().clone())
        run.turn(number)
        seen.append(run.behaviour.actor.queries.detach().clone())
    assert run.updates == 8
    for turn, source in enumerate([0, 0, 0, 1, 2]):
        assert torch.equal(seen[turn], began[source])
    assert not any(torch.equal(began[turn], began[turn - 1]) for turn in (2, 3, 4))
    assert [name for name in run.statistics if name.startswith("gipo_suppressed_ratio/")] == [
        "gipo_suppressed_ratio/lag_0", "gipo_suppressed_ratio/lag_1", "gipo_suppressed_ratio/lag_2_3",
    ]  # fmt: skip
