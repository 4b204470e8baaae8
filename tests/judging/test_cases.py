"""Each situation under `cases` is judged as its file says.

A file names a world (or a family of the zoo), its parameters, the step of the look unless it is the last (`at`), and what
must follow. Keys of `expect`:

- `verdict`, `layer`, `advice`, `reason`: the value, or a list of allowed ones;
- `cause`: first finding, or a list of allowed ones; null: no finding that asks for anything;
- `confidence`: at least this;
- `where`: columns and values of the place; null: no place;
- `since`: first and last step allowed;
- `named`: causes that are named, whatever they ask for;
- `never`: causes that are not named (possible is allowed);
- `k3`: null if it must not be stated;
- `share`: smallest and largest share of today's K3 allowed for the first finding;
- `lag`: smallest and largest limit allowed, by key of the document (null: it must be unknown); null if there must be none;
- `fix`: words of the remedy of the first finding.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from judging.worlds import World
from zoo.cases import CALM, FAMILIES, FIT, KINDS, RESTLESS, SEEN, SEEN_SLOW
from zoo.rollouts import rollouts

from logprobe.monitor.judging.document import LagLimitDocument
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import Confidence, Judgement
from logprobe.monitor.judging.proofs import NAMES
from logprobe.monitor.judging.signatures import SIGNATURES, UNKNOWN, bounded
from logprobe.monitor.judging.thresholds import THRESHOLDS

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
SETS = {of.name: of for of in (FIT, SEEN, SEEN_SLOW, RESTLESS, CALM)}
KEYS = {
    *(
        "verdict",
        "layer",
        "advice",
        "reason",
        "cause",
        "confidence",
        "where",
        "since",
        "named",
        "never",
        "k3",
        "share",
        "lag",
        "fix",
    )
}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    for frame, expect in frames(case):
        assert not (set(expect) - KEYS), "an expectation that is not checked"
        wrong = differences(judge(frame), expect)
        assert not wrong, f"{case['about']}: {wrong}"


def frames(case: dict[str, Any]) -> list[tuple[Frame, dict[str, Any]]]:
    if "zoo" not in case:
        return [(World(**_typed(case["world"])).frame(), case["expect"])]
    of = case["zoo"]
    kind = next(kind for kind in KINDS if kind.name == of["kind"])
    made = FAMILIES[of["family"]](SETS[of["set"]], kind, of["family"], of["seed"])
    drawn = rollouts(made.run)
    looks = [(case.get("at"), case["expect"])]
    if "before" in case and made.onset is not None:
        looks.append((made.onset - 1, case["before"]))
    onset = made.onset
    return [(drawn.frame(at), _dated(expect, onset)) for at, expect in looks]


def _dated(expect: dict[str, Any], onset: int | None) -> dict[str, Any]:
    """Steps of `since` are relative to the onset where the zoo draws it."""
    if "since" not in expect:
        return expect
    return {**expect, "since": [(onset or 0) + by for by in expect["since"]]}


def _typed(world: dict[str, Any]) -> dict[str, Any]:
    tuples = {f.name for f in fields(World) if str(f.type).startswith("tuple")}
    return {name: tuple(value) if name in tuples and value is not None else value for name, value in world.items()}


def differences(judgement: Judgement, expect: dict[str, Any]) -> dict[str, Any]:
    """Return what was judged otherwise, by key."""
    asking = [f for f in judgement.findings if f.urgency != "informational"]
    first = asking[0] if asking else None
    wrong: dict[str, Any] = {}
    for key in ("verdict", "layer", "advice", "reason"):
        if key in expect and getattr(judgement, key) not in _several(expect[key]):
            wrong[key] = getattr(judgement, key)
    if "cause" in expect and (None if first is None else first.cause) not in _several(expect["cause"]):
        wrong["cause"] = None if first is None else first.cause
    if "confidence" in expect and (first is None or first.confidence < Confidence[expect["confidence"].upper()]):
        wrong["confidence"] = None if first is None else first.confidence.name
    if "where" in expect:
        place = None if judgement.where is None else {c: list(v) for c, v in judgement.where.columns.items()}
        if place != expect["where"]:
            wrong["where"] = place
    if "since" in expect and not (
        judgement.since is not None and expect["since"][0] <= judgement.since <= expect["since"][1]
    ):
        wrong["since"] = judgement.since
    causes = [f.cause for f in judgement.findings if f.cause != UNKNOWN]
    if len(set(causes)) < len(causes):
        wrong["named twice"] = causes
    named = {f.cause for f in judgement.findings if f.named}
    if not named >= set(expect.get("named", ())):
        wrong["named"] = named
    if named & set(expect.get("never", ())):
        wrong["never"] = named & set(expect["never"])
    if "k3" in expect and judgement.level.k3 != expect["k3"]:
        wrong["k3"] = judgement.level.k3
    if "share" in expect and not (first is not None and _between(first.share, *expect["share"])):
        wrong["share"] = None if first is None else first.share
    if not adds_up(judgement):
        wrong["shares"] = "named ones and the rest do not add up to 1"
    wrong |= _of_lag(judgement, expect)
    if "fix" in expect and (first is None or expect["fix"] not in bounded(first.signature.remedy, first.evidence)):
        wrong["fix"] = None if first is None else dict(first.evidence)
    if wrong:
        wrong["all"] = [(f.cause, f.confidence.name, f.urgency, f.share, dict(f.evidence)) for f in judgement.findings]
        wrong["as judged"] = (judgement.verdict, judgement.layer, judgement.advice, judgement.reason, judgement.level)
    return wrong


def _between(share: float | None, low: float, high: float) -> bool:
    return share is not None and low <= share <= high


def adds_up(judgement: Judgement) -> bool:
    """Return whether the shares of named findings and of the unexplained rest are all of K3, where they are known."""
    shares = [finding.share for finding in judgement.findings if finding.named and finding.share is not None]
    return judgement.unexplained is None or sum(shares) + judgement.unexplained == pytest.approx(1.0)


def _of_lag(judgement: Judgement, expect: dict[str, Any]) -> dict[str, Any]:
    wanted, found = expect.get("lag"), judgement.lag
    if "lag" not in expect or (wanted is None and found is None):
        return {}
    held = found is not None and wanted is not None and all(
        found[key] is None if ends is None else _within(found[key], *ends) for key, ends in wanted.items()
    )  # fmt: skip
    return {} if held else {"lag": found}


def _within(limit: LagLimitDocument | None, first: int, last: int) -> bool:
    if limit is None:
        return False
    lag, (low, high) = limit["lag"] or 0, limit["interval"]
    return first <= lag <= last and low is not None and low <= lag and (high is None or lag <= high)


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_every_number_is_used_and_its_guards_are_cases() -> None:
    sources = "".join(p.read_text() for p in (Path(__file__).parents[2] / "monitor" / "judging").glob("*.py"))
    assert not [name for name in THRESHOLDS if f'number("{name}")' not in sources]
    guards = {guard for threshold in THRESHOLDS.values() for guard in threshold.guards}
    second = Path(__file__).parent / "second" / "cases"
    assert guards <= {path.stem for path in (*CASES, *second.glob("*.yaml"))}


def test_every_exclusion_is_a_fact_that_is_checked() -> None:
    assert {fact for row in SIGNATURES.values() for fact in row.excluded_by} <= NAMES
    assert all(row.remedy and row.words for row in SIGNATURES.values())
