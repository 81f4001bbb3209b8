"""Outcomes of trials as tables: success by task and suite, robustness against perturbations; JSON and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .metrics import SuccessRate
from .trials import Outcome, Trial

Rows = Sequence[tuple[Trial, Outcome]]


@dataclass(frozen=True)
class Count:
    """Trials of one task, or of a whole suite. An error is neither a success nor a failure: the rate leaves it out."""

    suite: str
    choice: str
    task: str
    """Empty for a whole suite."""
    task_index: int
    trials: int
    successes: int
    errors: int

    @property
    def rate(self) -> SuccessRate | None:
        """With its Wilson interval; None where every trial was an error."""
        judged = self.trials - self.errors
        return SuccessRate.of(self.successes, judged) if judged else None

    def to_json(self) -> dict[str, Any]:
        """Counts and rate."""
        rate = self.rate
        numbers = {"trials": self.trials, "successes": self.successes, "errors": self.errors}
        shown = {} if rate is None else {"rate": rate.rate, "low": rate.low, "high": rate.high}
        return {**numbers, **shown}


def count(rows: Rows, *, task: str = "", task_index: int = -1) -> Count:
    """Of ``rows`` that share suite and choice."""
    kinds = Counter(outcome.outcome for _, outcome in rows)
    first = rows[0][0]
    return Count(first.suite, first.choice, task, task_index, len(rows), kinds["success"], kinds["error"])


def by_suite(rows: Rows) -> list[tuple[Count, list[Count]]]:
    """Each suite and choice with its tasks, in the order in which they first come in ``rows``."""
    tables = []
    for _, group in groupby(rows, key=lambda row: (row[0].suite, row[0].choice)):
        mine = list(group)
        tasks = []
        for index, same in groupby(mine, key=lambda row: row[0].task_index):
            trials = list(same)
            tasks.append(count(trials, task=trials[0][0].task, task_index=index))
        tables.append((count(mine), tasks))
    return tables


def table_json(rows: Rows, facts: dict[str, Any]) -> dict[str, Any]:
    """``table.json``: what was measured, how, and each trial."""
    suites = []
    for whole, tasks in by_suite(rows):
        inner = [{"index": task.task_index, "task": task.task, **task.to_json()} for task in tasks]
        suites.append({"suite": whole.suite, "choice": whole.choice, **whole.to_json(), "tasks": inner})
    trials = [
        {
            "suite": trial.suite, "choice": trial.choice, "task_index": trial.task_index, "trial": trial.trial,
            "outcome": outcome.outcome, "env_steps": outcome.env_steps, "error": outcome.error,
            "digest": outcome.digest,
        }
        for trial, outcome in rows
    ]  # fmt: skip
    return {**facts, "suites": suites, "trials": trials}


def table_markdown(rows: Rows, facts: dict[str, Any]) -> str:
    """``table.md``."""
    lines = [f"# {facts['actor']} on {facts['env']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts["conditions"].items()]
    for whole, tasks in by_suite(rows):
        lines += ["", f"## {whole.suite}, {whole.choice}", "", _HEAD, _RULE]
        lines += [_line(f"{task.task_index} {task.task}", task) for task in tasks]
        lines.append(_line("**all**", whole))
    robust = _robustness(rows)
    if robust:
        lines += [
            "",
            "## Robustness",
            "",
            "| suite | success | 95 % | difference |",
            "|---|---|---|---|",
            *robust,
        ]
    errors = [(trial, outcome) for trial, outcome in rows if outcome.outcome == "error"]
    if errors:
        lines += ["", "## Errors of the environment", ""]
        lines += [
            f"- {trial.suite} task {trial.task_index} trial {trial.trial}: {outcome.error}"
            for trial, outcome in errors
        ]
    return "\n".join(lines) + "\n"


_HEAD = "| task | trials | successes | errors | success | 95 % |"
_RULE = "|---|---|---|---|---|---|"


def _line(name: str, row: Count) -> str:
    success, interval = _shown(row.rate)
    return f"| {name} | {row.trials} | {row.successes} | {row.errors} | {success} | {interval} |"


def _shown(rate: SuccessRate | None) -> tuple[str, str]:
    if rate is None:
        return "-", "-"
    return f"{100 * rate.rate:.1f} %", f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"


def _robustness(rows: Rows) -> list[str]:
    """One line per suite and choice, against the first suite; nothing where there is one suite."""
    wholes = [whole for whole, _ in by_suite(rows)]
    first = wholes[0].suite
    if all(whole.suite == first for whole in wholes):
        return []
    base = {whole.choice: whole.rate for whole in wholes if whole.suite == first}
    lines = []
    for whole in wholes:
        rate, against = whole.rate, base[whole.choice]
        success, interval = _shown(rate)
        difference = "-" if rate is None or against is None else f"{100 * (rate.rate - against.rate):+.1f}"
        lines.append(f"| {whole.suite}, {whole.choice} | {success} | {interval} | {difference} |")
    return lines
