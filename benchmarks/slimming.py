"""Vocabulary slimming on a Llama-shaped model with the real vocabulary: output layer and optimizer state in memory, inference
step, training step; whole output layer against the action tokens' rows, at the places that hold actions, and with logits of
the whole sequence, as a causal language model's forward makes them.

``--quick``: fewer repetitions; ``--width``, ``--layers``: of the model. Prints what a true 7B would save, computed from
shapes. One thread unless ``OMP_NUM_THREADS`` says otherwise. Needs ``pip install 'reverie-rl[vla]'``.
Writes results/slimming.json and results/slimming.png; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from policies.base import token_log_probs
from policies.openvla.network import LanguageModel, cache_name, new_cache
from policies.openvla.shape import ModelShape

RESULTS = Path(__file__).parent / "results"
VOCABULARY, ROWS, BINS = 32_000, 32_064, 256
PROMPT, ACTIONS = 64, 28
"""Tokens before the actions in the measurement, and 4 actions of 7 dimensions."""
FULL_7B = {"width": 4096, "rows": ROWS, "weights": 7_541_000_000}
"""OpenVLA-7B: towers, projector and Llama-2."""
FLOAT32 = 4


class Variant:
    """A language model, and which states its output layer reads."""

    def __init__(self, width: int, layers: int, *, slim: bool, everywhere: bool) -> None:
        torch.manual_seed(0)
        language = {
            "hidden_size": width, "intermediate_size": 43 * width // 16, "num_hidden_layers": layers,
            "num_attention_heads": max(1, width // 64),
        }  # fmt: skip
        shape = ModelShape((), language, VOCABULARY, ROWS, BINS)
        self.model = LanguageModel(shape, slim=slim)
        self.everywhere = everywhere
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def logits(self, states: Tensor) -> Tensor:
        """Of the action places; of the whole sequence first where the variant does so."""
        if self.everywhere:
            return self.model.logits(states)[:, -ACTIONS:]
        return self.model.logits(states[:, -ACTIONS:])

    def train(self, embeddings: Tensor, tokens: Tensor) -> None:
        """Forward, backward and AdamW's step."""
        states = self.model.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
        log_probs, _ = token_log_probs(self.logits(states), tokens)
        (-log_probs.mean()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def decide(self, embeddings: Tensor) -> None:
        """A prompt, then one token after another with a cache."""
        cache, new = new_cache(), embeddings
        for _ in range(ACTIONS):
            answer = self.model.model(inputs_embeds=new, use_cache=True, **{cache_name(): cache})
            states = answer.last_hidden_state if self.everywhere else answer.last_hidden_state[:, -1:]
            token = self.model.logits(states)[:, -1:].argmax(dim=-1)
            new = self.model.model.embed_tokens(VOCABULARY - 1 - token)

    def head_bytes(self) -> int:
        """Weight, gradient and two moments."""
        return 4 * FLOAT32 * self.model.lm_head.weight.numel()

    def all_bytes(self) -> int:
        """The same of the whole model."""
        return 4 * FLOAT32 * sum(each.numel() for each in self.model.parameters())


def seconds(work: Callable[[], None], repeats: int) -> float:
    """Median of one call."""
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(name: str, variant: Variant, batch: int, repeats: int) -> dict[str, Any]:
    """One row of the table."""
    width = variant.model.config.hidden_size
    generator = torch.Generator().manual_seed(1)
    sequence = torch.randn(batch, PROMPT + ACTIONS, width, generator=generator) * 0.02
    tokens = torch.randint(0, BINS, (batch, ACTIONS), generator=generator)
    return {
        "variant": name,
        "head_mb": variant.head_bytes() / 1e6,
        "model_mb": variant.all_bytes() / 1e6,
        "logits_mb": FLOAT32 * batch * (PROMPT + ACTIONS if variant.everywhere else ACTIONS) * variant.model.lm_head.out_features / 1e6,
        "decision_s": seconds(lambda: variant.decide(sequence[:, :PROMPT]), repeats),
        "training_s": seconds(lambda: variant.train(sequence, tokens), repeats),
    }  # fmt: skip


def of_a_true_7b() -> dict[str, float]:
    """Computed from shapes: what slimming saves of weights, gradients and moments, all trained or with adapters of 1 %."""
    whole = FULL_7B["rows"] * FULL_7B["width"]
    saved = whole - BINS * FULL_7B["width"]
    trained = 0.01 * FULL_7B["weights"] + whole
    return {
        "head_gb_full": 16 * whole / 1e9,
        "head_gb_slim": 16 * (whole - saved) / 1e9,
        "share_of_full_training": saved / FULL_7B["weights"],
        "share_of_trained_state_with_adapters": saved / trained,
        "logits_gb_per_sample_of_512_tokens": FLOAT32 * 512 * FULL_7B["rows"] / 1e9,
    }


def plot(rows: list[dict[str, Any]]) -> None:
    """Bars of the three measures, relative to the first row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    measures = {"model_mb": "weights and optimizer", "decision_s": "decision", "training_s": "training step"}
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for place, row in enumerate(rows):
        heights = [row[key] / rows[0][key] for key in measures]
        axes.bar([x + 0.27 * place for x in range(3)], heights, 0.25, label=row["variant"])
    axes.set_xticks([x + 0.27 for x in range(3)], list(measures.values()))
    axes.set_ylabel("relative to the first")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    figure.tight_layout()
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "slimming.png", dpi=130)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer repetitions")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    width, layers, repeats = (256, 2, 3) if given.quick else (given.width, given.layers, 7)
    kinds = {
        "all tokens, whole sequence": {"slim": False, "everywhere": True},
        "all tokens, action places": {"slim": False, "everywhere": False},
        "slim, action places": {"slim": True, "everywhere": False},
    }
    rows = [
        measure(name, Variant(width, layers, **kind), given.batch, repeats) for name, kind in kinds.items()
    ]
    print(
        f"{'output layer':<28}{'head MB':>9}{'model MB':>10}{'logits MB':>11}{'decision s':>12}{'training s':>12}"
    )
    for row in rows:
        print(
            f"{row['variant']:<28}{row['head_mb']:>9.1f}{row['model_mb']:>10.1f}{row['logits_mb']:>11.2f}"
            f"{row['decision_s']:>12.3f}{row['training_s']:>12.3f}"
        )
    computed = of_a_true_7b()
    print("a true 7B, computed from shapes:")
    for name, value in computed.items():
        print(f"  {name}: {value:.3f}")
    first, second, slim = rows
    result = {
        "memory_saved": 1 - slim["model_mb"] / second["model_mb"],
        "step_speedup": second["training_s"] / slim["training_s"],
        "step_speedup_over_whole_sequence": first["training_s"] / slim["training_s"],
        "decision_speedup": second["decision_s"] / slim["decision_s"],
        "width": width, "layers": layers, "batch": given.batch, "quick": given.quick,
        "computed_7b": computed, "rows": rows,
    }  # fmt: skip
    plot(rows)
    (RESULTS / "slimming.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
