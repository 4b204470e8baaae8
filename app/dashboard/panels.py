"""Choice and order of the metrics that the dashboard shows. Names, units and words come from the metric catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from logprobe.app.dashboard.theme import DASHES
from logprobe.collectors.kernel.pairs import RATIO_PAIRS, SIDES
from logprobe.monitor.metrics.catalog import metric
from logprobe.monitor.metrics.definition import PairMetric, StepMetric

PAIR_WORDS: Final = {
    "backend": "trainer − rollout: do engine and trainer agree about the same tokens?",
    "update": "current − trainer: how far the optimizer moved within the step",
    "total": "current − rollout: what a bypassed old policy sees; backend + update",
    "reference": "reference − trainer: how far the policy is from its reference policy",
    "teacher": "teacher − trainer: how far the student of an on-policy distillation is from its teacher",
}


@dataclass(frozen=True)
class Line:
    """One series of a panel. `role` decides its colour. `name` and `dash` distinguish it within its panel."""

    metric: str
    role: str
    name: str
    dash: str = "solid"


@dataclass(frozen=True)
class Panel:
    """One row of the linked figure. Its first line gives tile, title and tooltip."""

    lines: tuple[Line, ...]
    title: str
    scale: Literal["linear", "log", "auto"] = "linear"  # auto: logarithmic once values span decades
    from_zero: bool = False  # its axis begins at 0: a share or a count, where the distance to 0 is what matters
    height: int = 76  # of the plot area, pixels
    optional: bool = False  # of something that many runs do not have: left out without a value, rather than named

    @property
    def metric(self) -> str:
        """The metric that names the panel."""
        return self.lines[0].metric

    @property
    def words(self) -> str:
        """Tooltip with definition and formula."""
        declared = metric(self.metric)
        return f"{declared.words}\n{declared.formula}"


def _pairs(key: str, title: str, *, scale: Literal["linear", "log", "auto"] = "linear", height: int = 76) -> Panel:
    return Panel(
        tuple(Line(f"{pair}.{key}", pair, pair, DASHES[pair]) for pair in RATIO_PAIRS),
        title,
        scale=scale,
        height=height,
    )


def _backend(key: str, title: str) -> Panel:
    return Panel((Line(f"backend.{key}", "backend", "backend"),), title)


OVERVIEW: Final[tuple[Panel, ...]] = (
    _pairs("k3_kl", "K3", scale="log", height=120),
    _pairs("kl", "KL (k1)"),
    _pairs("chi2_token", "χ²", scale="auto"),
    _pairs("ess", "ESS"),
    _backend("log_ppl_diff", "Log-PPL difference"),
    Panel(
        (
            Line("backend.clip_fraction_high", "backend", "above"),
            Line("backend.clip_fraction_low", "backend", "below", "dot"),
        ),
        "Clip fraction",
        from_zero=True,
    ),
    _backend("ratio_deviation_1e4", "ρ deviation ×10⁴"),
    Panel(
        (Line("weight_lag_mean", "neutral", "mean"), Line("weight_lag_max", "neutral", "max", "dot")),
        "Weight lag",
        from_zero=True,
    ),
    Panel(
        (Line("reference.k3_kl", "neutral", "k3"), Line("reference.kl", "neutral", "k1", "dot")),
        "KL to reference",
        scale="auto",
        optional=True,
    ),
    Panel((Line("entropy", "neutral", "trainer"), Line("entropy_sampled", "backend", "sampled", "dot")), "Entropy"),
    Panel((Line("reward", "neutral", "mean"),), "Reward"),
)


def panel_of(declared: PairMetric | StepMetric, height: int = 76) -> Panel:
    """Return a row for all pairs of a metric."""
    if isinstance(declared, PairMetric):
        lines = tuple(Line(f"{pair}.{declared.key}", pair, pair, DASHES[pair]) for pair in declared.pairs)
        scale: Literal["log", "auto"] = "log" if declared.key == "k3_kl" else "auto"
        return Panel(lines, declared.label, scale=scale, height=height)
    return Panel((Line(declared.key, "neutral", "step"),), declared.label, scale="auto", height=height)


# What the measurement of a pair needs.
NEEDED: Final = {
    "backend": "rollout and trainer log-probs of the same tokens",
    "update": "current_logprobs",
    "total": "current_logprobs and rollout log-probs",
    "reference": "trainer log-probs and reference_logprobs",
    "teacher": "trainer log-probs and teacher_logprobs",
}
_RECORDED: Final = {"weights": "times of weight updates (weights.mark)"}
COVERAGE: Final = tuple(f"{pair}.coverage" for pair in SIDES)


def metrics_of(panels: tuple[Panel, ...]) -> tuple[str, ...]:
    """Return every metric that the panels need, coverage included, each once."""
    return tuple(dict.fromkeys([*(line.metric for panel in panels for line in panel.lines), *COVERAGE]))


def why_missing(key: str) -> str:
    """Return the missing input of a metric without a value, in a few words."""
    needs = metric(key).needs
    if needs:
        return f"needs {', '.join(_RECORDED.get(name, name) for name in needs)}"
    pair = key.partition(".")[0]
    return f"needs {NEEDED[pair]}" if pair in NEEDED else "not recorded"
