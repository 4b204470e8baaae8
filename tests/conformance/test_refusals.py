"""What a host cannot give is not made up, and what its loss cannot do is refused: nothing is recorded of it, and why is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance.hf_hosts import MsSwift, TrlAsync
from conformance.host import RUN, Host, closing
from conformance.other_hosts import MASK, OWN, PipelineRl, Rllm, SkyRl, packed, skyrl_trainer
from conformance.slime_hosts import Miles, Slime, megatron, train_data
from conformance.verl_hosts import CONFIG, Config, VerlV0, VerlV1
from spool_contents import health_events, rows

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile, Directives

Close = Callable[[], None]


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch, home: Path) -> Close:
    """The environment of a run; → closes every recorder that was made in it."""
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", RUN)
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)  # for the first look, on a busy machine
    return closing(monkeypatch)


# --- Nothing to compare ---


def bypassing(host: Any) -> None:
    host.config = Config(CONFIG, algorithm=Config(rollout_correction=Config(bypass_mode=True)))


def copying(host: Any, *, broken: bool = False) -> None:
    host.old, host.rollout = OWN.clone(), OWN.clone()
    if broken:  # a copy with NaN, and with other padding, is a copy
        host.old[0, -1] = host.rollout[0, -1] = float("nan")
        host.rollout[MASK == 0] = -7.0


def without_forward_pass(host: Any, trainer: str) -> None:
    host.trainer, kept = skyrl_trainer(trainer), host.batch
    host.patch.setattr(host, "batch", lambda: type(kept())(kept(), action_log_probs=None))


def in_pieces(host: Any) -> None:
    host.step = lambda: (megatron(host, pieces=2), host.train(train_data()))


def without_log_probs(host: Any) -> None:
    host.step = lambda: host.train({name: value for name, value in train_data().items() if name != "log_probs"})


def of_parallel_sequences(host: Any) -> None:
    host.step = lambda: host.micro_batch(packed(), 0, seq_parallel_group=object())


# Host and situation → how it comes about, rollout records that are left, what is said
NOTHING: dict[str, tuple[type[Host], Callable[[Any], None], int, str]] = {
    "verl v0, bypass mode": (VerlV0, bypassing, VerlV0.count, "bypass"),
    "verl v1, bypass mode": (VerlV1, bypassing, VerlV1.count, "bypass"),
    "rllm, bypass mode": (Rllm, copying, 0, ""),
    "rllm, bypass mode with broken tokens": (Rllm, lambda host: copying(host, broken=True), 0, ""),
    "SkyRL, a skipped forward pass": (SkyRl, lambda host: without_forward_pass(host, "RayPPOTrainer"), 4, "nothing can be compared"),
    "SkyRL, the same, asynchronous": (SkyRl, lambda host: without_forward_pass(host, "FullyAsyncRayPPOTrainer"), 4, "nothing can be compared"),
    "slime, sequences in pieces": (Slime, in_pieces, 0, "context parallelism"),
    "slime, no log-probs of its own": (Slime, without_log_probs, 0, "--get-mismatch-metrics"),
    "PipelineRL, sequences in pieces": (PipelineRl, of_parallel_sequences, 0, "seq_parallel"),
}  # fmt: skip


@pytest.mark.parametrize("situation", NOTHING)
def test_where_there_is_nothing_to_compare_no_sequence_is_recorded_and_that_is_said(
    situation: str, close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, prepare, sampled, words = NOTHING[situation]
    host = kind(monkeypatch)
    prepare(host)
    host.begin()
    host.step()
    close()
    assert not rows(home, "training")
    assert len(rows(home, "rollout")) == sampled
    assert words in health_events(home)["no_logprobs"][0]["message"]
    if kind is SkyRl:  # an asynchronous trainer does not note the version of each sample
        versions = {span["version"] for row in rows(home, "rollout") for span in row["spans"] or []}
        assert versions <= {None} if "asynchronous" in situation else versions == {"0"}


@pytest.mark.parametrize("place", [{"tp": 1}, {"last": False}, {"cp": 1, "pieces": 2}, None])
def test_other_ranks_of_one_data_parallel_group_record_nothing(
    place: dict[str, Any] | None, close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host: Any = (Miles if place is None else Slime)(monkeypatch)
    host.begin()
    if place is None:
        host.parallel.tp.rank = 1
    else:
        megatron(host, **place)
    host.train(train_data())
    close()
    assert not home.exists()


@pytest.mark.parametrize(
    ("layout", "words"),
    [({"padding_free": True}, "padding_free"), ({"sequence_parallel_size": 2}, "sequence parallel")],
)
def test_layouts_that_are_not_read_are_left_alone_and_said(
    layout: dict[str, Any], words: str, close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = MsSwift(monkeypatch)
    vars(host.trainer.template).update(layout)
    before = dict(vars(host.trainer))
    host.begin()
    close()
    assert {name: value for name, value in vars(host.trainer).items() if not name.startswith("_logprobe")} == before
    (report,) = health_events(home)["self_test"]
    assert words in report["message"]


# --- Corrections ---


def acting(**actor: Any) -> Callable[[Any], None]:
    def prepare(host: Any) -> None:
        host.config = Config(CONFIG, actor_rollout_ref=Config(CONFIG["actor_rollout_ref"], actor=Config(actor)))

    return prepare


def with_context_parallelism(host: Any) -> None:
    host.args = type(host.args)(**{**vars(host.args), "context_parallel_size": 2})


def as_it_is(host: Any) -> None:
    """As the suite has it."""


GSPO = {"policy_loss": Config(loss_mode="gspo"), "loss_agg_mode": "seq-mean-token-sum"}
# Host and its settings, correction → what is said; None: it is applied
CORRECTIONS: list[tuple[type[Host], Callable[[Any], None], CorrectionConfig, str | None]] = [
    (VerlV0, as_it_is, preset("mis"), None),
    (VerlV0, as_it_is, preset("prime-rl/dppo"), None),
    (VerlV0, acting(loss_agg_mode="seq-mean-token-sum"), preset("mis"), "denominator=renormalize"),
    (VerlV0, acting(policy_loss=Config(loss_mode="geo_mean")), preset("tis"), "geo_mean"),
    (VerlV0, acting(**GSPO), preset("mis"), "denominator=renormalize"),
    (VerlV0, bypassing, preset("tis"), "bypass mode"),
    (VerlV1, as_it_is, preset("mis"), "denominator=renormalize"),  # workers count in a mask that no rejection changes
    (Slime, as_it_is, preset("mis"), "denominator=renormalize"),  # it divides by tokens that it has counted before
    (Slime, with_context_parallelism, preset("tis"), "context parallelism"),
    (Slime, as_it_is, preset("slime/tis-rs", denominator="keep"), "normalize=True"),
    (TrlAsync, as_it_is, preset("tis"), "no importance weights"),
]


@pytest.mark.parametrize(("kind", "prepare", "config", "words"), CORRECTIONS)
def test_a_correction_is_applied_as_stated_or_refused(
    kind: type[Host], prepare: Any, config: CorrectionConfig, words: str | None, close: Close, home: Path, monkeypatch: Any
) -> None:  # fmt: skip
    host: Any = kind(monkeypatch)
    prepare(host)
    DirectiveFile(home, RUN).write(Directives(RUN).issue(host.at, config, "a test"), None)
    host.correction = True
    if kind is VerlV1:
        host.queue.kv_batch_put = pytest.fail  # what its workers would get
    host.begin()
    host.step()
    close()
    assert (host.applied is not None) == (words is None)
    assert bool([row for row in rows(home, "step") if row["correction"]]) == (words is None)
    if words is not None:
        assert words in health_events(home)["correction_impossible"][0]["message"]
