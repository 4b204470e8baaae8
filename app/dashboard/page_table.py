"""The dashboard's pages, in the order of their tabs: the one place where a page is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Page:
    """A page of the dashboard, drawn by `draw` of the module in `pages/` that has the name of its path; that of "" is
    `overview`.

    Attributes:
        path: in the address; "" for the first one.
        key: opens it after "g".
        title: of its tab.
        about: the question that it answers and how to read it, for someone who has never seen it: two sentences at
            most.
        next: path of a page to go on to → what for.
        parts: name of a part, in their order on the page → what it shows.
        panels: modules in `browser/` that it draws with; the browser fetches them together with the page.
        acts: whether it is there to change something, so that the home's token is asked for on top of it.
        of_home: whether it has something to say without a run, or about one that has no step yet.
        of_all: whether it is about all runs, so that none needs to be chosen.
    """

    path: str
    key: str
    title: str
    about: str
    next: Mapping[str, str]
    parts: Mapping[str, str]
    panels: tuple[str, ...]
    acts: bool = False
    of_home: bool = False
    of_all: bool = False


PAGES: Final = (
    Page(
        "runs",
        "r",
        "Runs",
        "Which runs need somebody now, and why? The worst come first; a severity is the worse of a run's verdict and "
        "its "
        "firing alerts.",
        next={"": "for one run"},
        parts={
            "Severity": "Critical, warning, unknown (not judged, or not judged recently enough) or ok.",
            "Cause": "The finding that explains most of K3, or the alert that fires.",
            "K3": "Of the last steps, on a logarithmic axis of at least two decades, and the newest value.",
            "Alerts": "Those that fire, and who acknowledged them.",
        },
        panels=("runs",),
        of_home=True,
        of_all=True,
    ),
    Page(
        "incidents",
        "i",
        "Incidents",
        "What went badly wrong, and why? One opens when a run becomes critical, and closes once it was healthy for 100 "
        "steps in a row; its alerts share a message thread.",
        next={
            "diagnosis": "for evidence and fix",
            "tokens": "for single tokens",
        },
        parts={
            "Last good step": "The last one before the onset, and the last checkpoint before it, where the trainer's "
            "are recorded.",
            "What changed": "Settings with both values, restarts, replicas and tags, in the 50 steps before the onset.",
        },
        panels=("document",),
        of_home=True,
        of_all=True,
    ),
    Page(
        "",
        "o",
        "Overview",
        "Do engine and trainer compute the same log-probability for the same token, and if not, since which "
        "step, why, and what should you do? The banner is the verdict; tiles compare the latest values with what "
        "is usual for this run.",
        next={
            "diagnosis": "for evidence and fix",
            "actions": "for the effect of a correction",
        },
        parts={
            "Banner": "The latest diagnosis: since which step, K3 against the run's own baseline, the layer at fault, "
            "the cause "
            "with its share of K3, and what to do. What is normal for this setup needs no action.",
            "K3": "The size of the mismatch, mean(ρ − 1 − d) over the trained tokens: an estimate of the KL divergence "
            "between engine and trainer, in nats. 0 if they agree; about 1e-3 in dense bfloat16 models, 1e-2 in "
            "mixtures of experts.",
            "Tiles": "The latest value of each metric and its median in this run. Click a name for formula and "
            "history.",
            "Chart": "The band is the run's normal range of K3, the red line the onset. Marks along the top are weight "
            "updates, alerts, changed settings, restarts and corrections. Drag to zoom; all rows share the steps.",
            "Metrics": "Which rows and tiles there are: those of the overview, or any of the catalog.",
        },
        panels=("tiles", "chart"),
    ),
    Page(
        "diagnosis",
        "d",
        "Diagnosis",
        "Which cause explains K3, what is the evidence, and what fixes it? Layers are listed in the order in which "
        "they are ruled out: repair semantic faults first, then the inference path; importance sampling is for what "
        "remains.",
        next={
            "weights": "if staleness or a missed update is named",
            "actions": "for the correction and its effect",
        },
        parts={
            "Semantic": "The engine's log-probs do not mean what the trainer expects: raw instead of processed ones, "
            "another "
            "temperature, misaligned tokens.",
            "Inference path": "The engine computes a different function from the trainer: precision, a stale prefix "
            "cache, missed "
            "weight updates.",
            "Objective": "Engine and trainer agree, but the policy that sampled is not the one that is trained: weight "
            "lag, or "
            "training that moves too fast. This is what importance sampling corrects.",
            "Share": "How much of today's K3 a cause explains; with the unexplained rest, shares add up to 1.",
            "Evidence": "Measurements with a known expected value. What could not be measured is listed with what to "
            "record.",
            "Accept": "A finding that you intend stays listed, but no longer alerts or vetoes a correction.",
            "Parity": "The run's settings against those that engine and trainer need to agree.",
        },
        panels=("chart", "parity"),
        acts=True,
    ),
    Page(
        "mismatch",
        "m",
        "Mismatch",
        "How large is the mismatch by every metric, and which tokens carry it? Each metric compares a pair: engine "
        "and trainer (backend), the trainer before and at the update (update), or both together (total).",
        next={
            "tokens": "for single tokens",
            "diagnosis": "for the cause",
        },
        parts={
            "All metrics": "One row per metric, one column per pair: the latest value in view against the median of "
            "all earlier "
            "steps. Click a name for its formula and its chart.",
            "Log-ratio density": "How d is distributed over the tokens of each step: all of them drifting, or a few "
            "far off.",
            "Profiles": "The mismatch by position in the sequence and in the turn, by token probability and by weight "
            "lag.",
            "Slices": "Groups of sequences by length, replica, tag, weight lag and so on, each with its share of K3.",
        },
        panels=("chart", "mismatch", "slices"),
    ),
    Page(
        "weights",
        "w",
        "Weights",
        "Which weights sampled the tokens of each step, and how many versions old were they? Lag raises K3 without "
        "any fault in the engine, so look here before you blame it.",
        next={
            "diagnosis": "for the share of K3 that lag explains",
        },
        parts={
            "Updates": "One lane per engine, the trainer on top: a tick where new weights arrived, a bar for how long "
            "it took, "
            "marks where versions were skipped or an older one returned.",
            "Lag and delay": "Weight lag is the trainer's version minus that of the weights that sampled a token. 0 is "
            "on-policy; a "
            "lag that keeps growing is a growing queue in front of the trainer.",
            "Around a weight switch": "Tokens next to new weights that arrived in mid-sequence: larger after the "
            "switch points to a KV cache "
            "that was kept, larger before it to staleness.",
            "K3 by weight version": "Of sequences sampled by a single version.",
        },
        panels=("chart",),
    ),
    Page(
        "tokens",
        "t",
        "Tokens",
        "Which tokens make up a step's K3, and what did engine and trainer compute for each? The same place wrong in "
        "every sequence points to the template or the mask, rare tokens off everywhere to arithmetic.",
        next={
            "diagnosis": "for the cause behind a pattern",
        },
        parts={
            "Bars": "K3 by step: dark where raw tokens are kept, a cross where tokens are broken. Click one to open "
            "the step.",
            "Sequences": "The step's worst: those with broken tokens first, then by share of the step's K3.",
            "Strip": "Blue: less likely in the trainer than in the engine (ρ < 1); orange: more likely; hatched: not "
            "trained "
            "on; framed: broken. Select a token for all its values.",
            "Corrections": "Each token's weight, or the rule that drops it, under the reported correction and the "
            "preset mis.",
        },
        panels=("tokens",),
    ),
    Page(
        "compare",
        "c",
        "Compare",
        "In which metrics and settings do runs differ, and since which step? Worse and better mean a difference beyond "
        "noise and margin in the steps that both runs have; same means that none was found.",
        next={
            "diagnosis": "for the cause in the run that is worse",
        },
        parts={
            "Verdicts": "Metric by metric against the baseline. Expand a run for its numbers and reasons.",
            "Curves": "The values, and below them their ratio to the baseline; shaded is what noise and margin "
            "explain.",
            "Onsets": "Where K3 left the baseline run's band, and since which step it has grown relative to the run's "
            "own history.",
            "Configuration": "Settings that differ, those that affect log-probs first.",
        },
        panels=("compare",),
    ),
    Page(
        "alerts",
        "a",
        "Alerts",
        "Which alerts fire now, who is handling them, and where did notifications go? Judgement and liveness alert "
        "without setup; `logprobe alerts try` shows on which recorded steps a threshold would have fired.",
        next={
            "diagnosis": "for the cause",
            "actions": "for the correction",
        },
        parts={
            "Firing": "Acknowledge: you are handling it. Snooze: the same for a while. Silence: no notifications for "
            "whatever "
            "matches.",
            "Thresholds": "Limits of your own, from `logprobe.yaml`.",
            "Channels": "Where notifications go, and whether that works; below, messages that were not delivered.",
        },
        panels=("token_form",),
        acts=True,
    ),
    Page(
        "actions",
        "x",
        "Actions",
        "Should the loss be corrected by importance sampling, is it, and did it help? A correction repairs the "
        "objective, not the engine: it is for policies that drift apart, and never for a fault upstream.",
        next={
            "": "to see whether K3 still grows",
            "diagnosis": "for what is left to fix",
        },
        parts={
            "Correction": "Mode suggest reports when a correction is advised; armed also switches it on; off does "
            "neither. Preview "
            "computes it on recorded tokens and switches nothing. The kill switch ends it from the next step on.",
            "Trend": "K3, the share of tokens masked, the ESS of the weights and the reward, with every decision as a "
            "mark.",
            "Effect": "As many steps before the switch as after it, with intervals. If K3 still doubles, the "
            "correction is not "
            "enough: remove the cause.",
            "Audit": "Every action, suggestion and refusal with its reason.",
        },
        panels=("chart", "token_form"),
        acts=True,
    ),
    Page(
        "data",
        "s",
        "Data",
        "What was recorded, what was dropped or quarantined and why, and how far behind is the service? What is "
        "missing here is unknown everywhere else, never 0.",
        next={
            "diagnosis": "for what the diagnosis could not measure",
        },
        parts={
            "Stored": "Runs with their size on disk, and how far ingest is behind.",
            "Missing inputs": "What was not recorded, which metrics that affects, and what to do.",
            "Collectors": "What each process sent, lost and holds in its queue, and whether its self-test passed.",
            "Quarantine": "Files that cannot be trusted, with the reason; retry or drop them.",
            "SQL": "One statement over all runs. It can read everything and write nothing.",
        },
        panels=("data", "sql"),
        acts=True,
        of_home=True,
    ),
)
BY_PATH: Final[Mapping[str, Page]] = {page.path: page for page in PAGES}
