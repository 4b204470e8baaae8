"""What fingerprints of weights prove, as signs of the causes that numbers alone can only suggest."""

from __future__ import annotations

from logprobe.monitor.diagnosis.causes.cause import CERTAIN, KNOWN, Sign
from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.weight_readings import Mismatch


def diverged(evidence: Evidence, effect: float) -> Sign | None:
    """Replicas have different weights under one version."""
    found = evidence.readings.divergence
    if found is None:
        return None
    names = " and ".join(found.wrong) or "one of them"
    return Sign(
        CERTAIN,
        effect,
        {
            "replica": found.wrong[0] if found.wrong else None,
            "replicas": len(found.replicas),
            "different": list(found.wrong),
            "version": found.version,
        },
        f"Replicas {', '.join(found.replicas)} say that they have version {found.version}, and their weights have different fingerprints: "
        f"{names} has other weights ({found.why}).",
        since_step=found.step,
    )


def not_synced(evidence: Evidence, effect: float) -> Sign | None:
    """The engine's weights are not those of its label: old ones, or unknown ones."""
    found = evidence.readings.mismatch
    if evidence.readings.recurring:
        return _again_and_again(evidence, effect)
    if found is None or found.partial or evidence.readings.divergence is not None:
        return None
    whose = (
        f"those of version {found.held}" if found.held is not None else "those of no version that the trainer published"
    )
    return Sign(
        CERTAIN,
        effect,
        _numbers(found),
        f"{_engine(found)} says that it has version {found.version}, and the fingerprint of its weights is {whose}: new weights do not reach it.",
        since_step=found.step,
    )


def _again_and_again(evidence: Evidence, effect: float) -> Sign:
    labels = evidence.readings.recurring
    return Sign(
        CERTAIN,
        effect,
        {"versions": len(labels), "version": labels[-1]},
        f"Of {len(labels)} versions, the newest of them {labels[-1]}, the engine had the label and, by their fingerprints, the weights of another; in between "
        "it had the right ones: it misses updates now and then.",
    )


def partly_synced(evidence: Evidence, effect: float) -> Sign | None:
    """Some tensors are the trainer's, others are not."""
    found = evidence.readings.mismatch
    if found is None or not found.partial:
        return None
    return Sign(
        CERTAIN,
        effect,
        _numbers(found),
        f"{_engine(found)} has version {found.version} in some tensors; {len(found.different)} of {found.compared} that were compared have "
        f"other values than at the trainer: {found.tensors}.",
        since_step=found.step,
    )


def version_reused(evidence: Evidence) -> Sign | None:
    """One version names different weights, so whose weights sampled a token of it no one can say."""
    found = evidence.readings.reuse
    if found is None:
        return None
    who = (
        "The trainer"
        if found.source == "trainer"
        else "The engine"
        if found.replica is None
        else f"Replica {found.replica}"
    )
    what = "" if found.adapter is None else f" of the adapter {found.adapter}"
    more = f" (so do {found.versions - 1} more versions)" if found.versions > 1 else ""
    return Sign(
        CERTAIN,
        0.0,
        {
            "version": found.version,
            "fingerprints": found.different,
            "versions": found.versions,
            "adapter": found.adapter,
        },
        f"{who} had {found.different} different weights{what} under version {found.version}{more}, by their fingerprints: which of them sampled "
        "a token of that version is unknown, and its lag may be wrong.",
        since_step=found.step,
    )


def unannounced_weights(evidence: Evidence) -> Sign | None:
    """Weights that were overwritten in place, without a load, a label or a mark."""
    changes = evidence.readings.unannounced
    if not changes:
        return None
    unknown = evidence.unknown_versions
    return Sign(
        KNOWN,
        unknown,
        {"changes": changes, "unknown_version_share": unknown},
        f"Workers' fingerprints changed {changes} times without a load, a label or a mark: something writes the weights in place. From the last "
        f"matching reading to the next mark the version is unknown ({unknown:.0%} of the tokens have none).",
    )


def _engine(found: Mismatch) -> str:
    return "The engine" if found.replica is None else f"Replica {found.replica}"


def _numbers(found: Mismatch) -> dict[str, object]:
    return {
        "version": found.version,
        "weights_of_version": found.held,
        "tensors_compared": found.compared,
        "tensors_different": len(found.different),
    }
