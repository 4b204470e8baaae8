"""What fingerprints of weights prove, as signs of the causes that numbers alone can only suggest."""

from __future__ import annotations

from logprobe.monitor.diagnosis.causes.cause import CERTAIN, KNOWN, Sign
from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.weight_readings import Mismatch


def diverged(evidence: Evidence, effect: float) -> Sign | None:
    """Replicas have different weights under one version."""
    divergence = evidence.readings.divergence
    if divergence is None:
        return None
    names = " and ".join(divergence.wrong) or "one of them"
    return Sign(
        CERTAIN,
        effect,
        {
            "replica": divergence.wrong[0] if divergence.wrong else None,
            "replicas": len(divergence.replicas),
            "different": list(divergence.wrong),
            "version": divergence.version,
        },
        f"Replicas {', '.join(divergence.replicas)} say that they have version {divergence.version}, and their weights "
        "have different fingerprints: "
        f"{names} has other weights ({divergence.why}).",
        since_step=divergence.step,
    )


def not_synced(evidence: Evidence, effect: float) -> Sign | None:
    """The engine's weights are not those of its label: old ones, or unknown ones."""
    mismatch = evidence.readings.mismatch
    if evidence.readings.recurring:
        return _again_and_again(evidence, effect)
    if mismatch is None or mismatch.partial or evidence.readings.divergence is not None:
        return None
    whose = (
        f"those of version {mismatch.held}"
        if mismatch.held is not None
        else "those of no version that the trainer published"
    )
    return Sign(
        CERTAIN,
        effect,
        _numbers(mismatch),
        f"{_engine(mismatch)} says that it has version {mismatch.version}, and the fingerprint of its weights is "
        f"{whose}: new weights do not reach it.",
        since_step=mismatch.step,
    )


def _again_and_again(evidence: Evidence, effect: float) -> Sign:
    labels = evidence.readings.recurring
    return Sign(
        CERTAIN,
        effect,
        {"versions": len(labels), "version": labels[-1]},
        f"Of {len(labels)} versions, the newest of them {labels[-1]}, the engine had the label and, by their "
        "fingerprints, the weights of another; in between "
        "it had the right ones: it misses updates now and then.",
    )


def partly_synced(evidence: Evidence, effect: float) -> Sign | None:
    """Some tensors are the trainer's, others are not."""
    mismatch = evidence.readings.mismatch
    if mismatch is None or not mismatch.partial:
        return None
    return Sign(
        CERTAIN,
        effect,
        _numbers(mismatch),
        f"{_engine(mismatch)} has version {mismatch.version} in some tensors; {len(mismatch.different)} of "
        f"{mismatch.compared} that were compared have "
        f"other values than at the trainer: {mismatch.tensors}.",
        since_step=mismatch.step,
    )


def version_reused(evidence: Evidence) -> Sign | None:
    """One version names different weights, so whose weights sampled a token of it no one can say."""
    reuse = evidence.readings.reuse
    if reuse is None:
        return None
    who = (
        "The trainer"
        if reuse.source == "trainer"
        else "The engine"
        if reuse.replica is None
        else f"Replica {reuse.replica}"
    )
    of_adapter = "" if reuse.adapter is None else f" of the adapter {reuse.adapter}"
    more = f" (so do {reuse.versions - 1} more versions)" if reuse.versions > 1 else ""
    return Sign(
        CERTAIN,
        0.0,
        {
            "version": reuse.version,
            "fingerprints": reuse.different,
            "versions": reuse.versions,
            "adapter": reuse.adapter,
        },
        f"{who} had {reuse.different} different weights{of_adapter} under version {reuse.version}{more}, by their "
        "fingerprints: which of them sampled "
        "a token of that version is unknown, and its lag may be wrong.",
        since_step=reuse.step,
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
        f"Workers' fingerprints changed {changes} times without a load, a label or a mark: something writes the "
        "weights in place. From the last "
        f"matching reading to the next mark the version is unknown ({unknown:.0%} of the tokens have none).",
    )


def _engine(mismatch: Mismatch) -> str:
    return "The engine" if mismatch.replica is None else f"Replica {mismatch.replica}"


def _numbers(mismatch: Mismatch) -> dict[str, object]:
    return {
        "version": mismatch.version,
        "weights_of_version": mismatch.held,
        "tensors_compared": mismatch.compared,
        "tensors_different": len(mismatch.different),
    }
