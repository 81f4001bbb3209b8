"""What the configs of all policies check of a decision."""

from __future__ import annotations

from configs.errors import ConfigError


def check_replan(chunk: int, replan: int) -> None:
    """Raise ConfigError where a decision executes more actions than it has."""
    if replan > chunk:
        raise ConfigError(
            f"policy.replan={replan} is larger than policy.chunk={chunk}",
            where="policy",
            remedy=f"set policy.replan to at most {chunk}, or raise policy.chunk",
        )
