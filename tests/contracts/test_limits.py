"""Every list with a fixed limit, and what becomes of the first one past it: nothing is left out without a word.

A limit that is new in the code has to be added here, with what it says of the rest. "sample": what is computed from it is of these by its definition, and
says so; "window": the newest, or as many as a calculation needs; "counted": the number of all is beside it; "page": the rest comes with the next call or turn; "text": a text that is
cut; "oldest": what is remembered, and unknown once it is displaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from alert_notes import NOTE

from logprobe.alerts.rules.liveness import _names as collectors
from logprobe.alerts.sending.channels import slack_message
from logprobe.app.proof_setup import _check_versions
from logprobe.app.text.comparison import _names as metrics
from logprobe.app.text.scores import _sequences
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.judging.level import rows_named
from logprobe.monitor.judging.weight_readings import Mismatch
from logprobe.monitor.live.delays import SHOWN, Delays
from logprobe.monitor.liveness import Writer
from logprobe.monitor.service import healthz
from logprobe.monitor.store.store import Store

PRODUCT = ("collectors", "monitor", "alerts", "app")
_SLICE = re.compile(
    r"\[\s*(?::\s*((?:\w+\.)*_?[A-Z][A-Z_]{2,})|-\s*((?:\w+\.)*_?[A-Z][A-Z_]{2,})\s*:)\s*\]"
    r"|:\s*min\([^\]]*?(_?[A-Z][A-Z_]{2,})\)\]|maxlen=([^,)]+)"
)
_LIMIT = re.compile(r"\bLIMIT (\$?\w+)")
_GUARD = re.compile(
    r"\b(?:if|while) [^\n]*?\blen\((?:[^()]|\([^()]*\))*\) >=? ((?:\w+\.)*_?[A-Z][A-Z_]{2,}(?:\.value)?)"
)

# Of those that people could miss: the test that shows what is said.
SAID = {
    "alerts/rules/liveness.py _FEW": "tests/contracts/test_limits.py::test_names_in_a_sentence",
    "alerts/sending/channels/slack_message.py _MOST_CHANGES": "tests/contracts/test_limits.py::test_a_slack_message",
    "app/text/scores.py _SHOWN": "tests/contracts/test_limits.py::test_sequences_that_a_score_names",
    "app/dashboard/pages/alerts.py RECENT": "tests/app/dashboard/test_words.py",  # "the last 30 transitions"
    "app/view/parity.py MOST": "tests/app/dashboard/test_words.py::test_what_is_not_met_comes_first",
    "app/dashboard/pages/mismatch.py MOST_TAGS": "tests/app/dashboard/test_words.py::test_slices_and_tags_beyond",
    "app/proof_setup.py _NAMED": "tests/contracts/test_limits.py::test_weight_versions_in_an_error",
    "monitor/judging/named.py _SHOWN": "tests/monitor/diagnosis/test_named.py::test_three_values_of_a_setting_are_shown",
    "app/view/story.py _SHOWN": "tests/app/test_report_command.py::test_a_terminal_shows_the_newest",
    "app/view/changes.py _MOST": "tests/app/test_changes.py::test_the_first_setting_past_the_limit",
    "app/text/comparison.py _SHOWN": "tests/contracts/test_limits.py::test_names_in_a_sentence",
    "collectors/directives.py _MOST_ENTRIES": "tests/collectors/test_directives.py::test_the_257th_switch",
    "collectors/vllm/config.py _LONGEST": "tests/collectors/test_vllm_config.py::test_what_differs_beyond_the_cut",
    "monitor/judging/weight_readings.py _NAMED": "tests/contracts/test_limits.py::test_names_in_a_sentence",
    "monitor/live/delays.py SHOWN": "tests/contracts/test_limits.py::test_files_that_wait",
    "monitor/service/healthz.py _MOST_NAMED": "tests/contracts/test_limits.py::test_late_runs",
    "monitor/service/scrape.py MOST_RUNS": "tests/monitor/test_prometheus.py::test_only_live_runs_and_only_so_many",
    "monitor/sql/app_data.sql app_data_quarantine $limit": "tests/app/dashboard/test_words.py::test_a_file_set_aside",
}  # fmt: skip
OTHERS = {
    "monitor/sql/bits.sql bits_differing $count": "counted",  # of these the first token is named, with how many others differ
    "alerts/controller/decide.py _ENOUGH_ACKS": "window",
    "alerts/sending/outbox.py _LONGEST_ERROR": "text",
    "app/demo/policy.py 512": "window",  # older weights, from which batches are sampled
    "app/view/tokens.py _WORST": "sample",  # the table of the worst tokens, below the strip of all
    "app/dashboard/figures.py MOST_LINES": "window",  # hairlines; each event has its symbol
    "app/dashboard/figures.py MOST_SYMBOLS": "window",
    "app/dashboard/pages/tokens.py WORST": "sample",  # of the strip, which has all
    "app/dashboard/pages/tokens.py _NAME": "text",
    "app/dashboard/reading/other_places.py MOST": "sample",  # the worst are looked at more closely, all are listed
    "app/dashboard/reading/tokens.py _RECENT": "window",
    "collectors/directives.py _LONGEST_REASON": "text",
    "collectors/recorder/reduction.py _HASH_BYTES": "text",
    "collectors/shipping/autostart.py _TAIL": "text",
    "collectors/shipping/shipper.py _BATCH": "page",
    "collectors/shipping/shipper.py _MOST_RUNS": "window",
    "collectors/vllm/adapters.py _MOST_LOADS": "oldest",
    "monitor/analysis/token_view.py _LISTED": "sample",
        "monitor/judging/weight_readings.py _LOOKED_AT": "window",
    "monitor/judging/growth.py _LATE_BLOCKS": "window",
    "monitor/judging/growth.py _LONGEST": "window",
    "monitor/judging/growth.py _STEADY_BLOCKS": "window",
    "monitor/judging/growth.py _TREND_BLOCKS": "window",
    "monitor/judging/parity/judging.py _SHOWN": "sample",  # of a sentence, with "…" where there are more
    "monitor/importers/frameworks.py _SHOWN": "text",
    "monitor/importers/reading.py _SHOWN": "text",
    "monitor/judging/gather.py _ROUTED_STEPS": "sample",
    "monitor/judging/safe_lag.py WINDOW": "window",
    "monitor/plain_text.py _LONGEST_NAME": "text",  # followed by a checksum of all
    "monitor/proof/scorers/running.py _LOG_TAIL": "text",
    "monitor/proof/scoring.py _WATCHED": "sample",
    "monitor/service/deleting.py _LAST": "window",
    "monitor/shipped/nodes.py _WORDS": "text",
    "monitor/shipped/pulling.py _MOST_NAMED": "counted",
    "monitor/store/archiving.py _MOST_NAMED": "counted",
    "monitor/store/freezing.py _DAY // _GROWTH_PAUSE": "window",
    "monitor/sql/diagnosis_routes.sql diagnosis_routes 512": "sample",
    "monitor/sql/diagnosis_sampled.sql diagnosis_sampled $most": "window",
    "monitor/sql/freeze.sql freeze_due $most": "page",
    "monitor/sql/known_levels.sql known_levels 100": "sample",
    "monitor/sql/outbox.sql outbox_unrouted $limit": "page",
    "monitor/sql/profile.sql profile_due $steps": "page",
    "monitor/sql/proof_imported.sql proof_imported $most": "sample",
    "monitor/sql/proof_sequences.sql proof_sequences $most": "sample",
    "monitor/sql/push_steps.sql push_steps $count": "page",
}  # fmt: skip

# Sizes that something is compared with. "refused": the error names the limit; "batch": the rest comes with the next one; "forgotten": asked, read or
# said once more; "least": from so many on something can be told; "pooled": more of them share a row; "said", "counted", "oldest", "text": as above.
GUARDS = {
    "app/text/scores.py _SHOWN": "said",
    "app/dashboard/access/tries.py _ADDRESSES": "oldest",  # the pause of all together is kept apart
    "app/dashboard/pages/mismatch.py MOST_TAGS": "said",
    "app/proof_setup.py _NAMED": "said",
    "app/view/changes.py _MOST": "said",
    "app/text/comparison.py _SHOWN": "said",
    "collectors/versions.py _MOST_CHANGES": "oldest",  # a time before them has an unknown version
    "collectors/vllm/adapters.py _MOST_LOADS": "oldest",
    "collectors/vllm/capture.py _MOST_FINISHED": "counted",
    "collectors/vllm/capture.py _STEPS_IN_FLIGHT": "counted",
    "collectors/vllm/config.py _LONGEST": "said",
    "collectors/vllm/prompts.py _MOST_KNOWN": "forgotten",
    "monitor/judging/frames.py _RUNS": "forgotten",  # and read whole once more
    "monitor/judging/level.py _NAMED": "said",
    "monitor/judging/records.py _LONG": "least",
    "monitor/judging/replay.py _SOME": "least",
    "monitor/judging/safe_lag.py _MOST_LAGS": "pooled",
    "monitor/judging/weight_readings.py _NAMED": "said",
    "monitor/judging/growth.py _FEWEST_BLOCKS": "least",
    "monitor/judging/growth.py _LATE_BLOCKS": "least",
    "monitor/judging/named.py _SHOWN": "said",
    "monitor/judging/parity/judging.py _SHOWN": "said",
    "monitor/judging/proven.py _FEWEST": "least",
    "monitor/live/ingest.py BATCH_SEGMENTS": "batch",
    "monitor/live/newest.py _CHUNKS": "forgotten",  # and read from the store
    "monitor/live/newest.py _RUNS": "forgotten",  # likewise
    "monitor/metrics/exact.py _FEW": "least",
    "monitor/proof/departing.py _FEWEST": "least",
    "monitor/proof/scale.py _FEWEST_LIKELY": "least",
    "monitor/proof/scoring.py _EIGHT": "least",
    "monitor/service/jobs.py _MOST_ERRORS": "forgotten",
    "monitor/shipped/landing.py _NAME_BYTES": "refused",
    "monitor/shipped/nodes.py _MOST_NODES": "said",
    "monitor/shipped/pulling.py _TOGETHER": "batch",
    "monitor/store/archive.py SMALL_FILES": "batch",
    "monitor/store/kept.py _MOST": "forgotten",  # and asked again
    "monitor/settings/yaml_text.py limits.SETTINGS.value": "refused",
}


def guards(repository: Path) -> Iterator[str]:
    for file in sorted(file for top in PRODUCT for file in (repository / top).rglob("*.py")):
        yield from (f"{file.relative_to(repository)} {match[1]}" for match in _GUARD.finditer(file.read_text()))


def limits(repository: Path) -> Iterator[str]:
    for file in sorted(file for top in PRODUCT for file in (repository / top).rglob("*")):
        place = str(file.relative_to(repository))
        if file.suffix == ".py":
            for found in _SLICE.finditer(file.read_text()):
                yield f"{place} {next(name for name in found.groups() if name)}"
        elif file.suffix == ".sql" and "/schema/" not in place:
            yield from _of_statements(place, file.read_text())


def _of_statements(place: str, text: str) -> Iterator[str]:
    for part in re.split(r"\n(?=-- [a-z]\w+: )", text):
        named = re.match(r"-- ([a-z]\w+): ", part)
        name = named[1] if named else Path(place).stem
        code = "\n".join(line.partition("--")[0] for line in part.splitlines())
        yield from (f"{place} {name} {limit}" for limit in _LIMIT.findall(code) if limit not in {"0", "1"})


def test_every_limit_is_known_with_what_becomes_of_the_first_one_past_it(repository: Path) -> None:
    assert sorted(set(limits(repository))) == sorted([*SAID, *OTHERS])


def test_every_size_that_something_is_compared_with_is_known(repository: Path) -> None:
    assert sorted(set(guards(repository))) == sorted(GUARDS)


def test_the_tests_that_are_named_exist(repository: Path) -> None:
    for test in SAID.values():
        file, _, name = test.partition("::")
        assert (repository / file).exists(), file
        assert not name or f"def {name}" in (repository / file).read_text(), test


def test_names_in_a_sentence() -> None:
    writers = [Writer(f"w{at}", None, closed=False) for at in range(5)]
    assert collectors(writers[:3]) == "w0, w1, w2"
    assert collectors(writers[:4]) == "w0, w1, w2 and 1 more collectors"
    verdicts = [SimpleNamespace(label=f"m{at}") for at in range(5)]
    assert metrics(verdicts[:4]) == "m0, m1, m2, m3"
    assert metrics(verdicts) == "m0, m1, m2, m3 and 1 more"
    tensors = Mismatch("1", 1, None, None, 9, ("a", "b", "c"), partial=True)
    assert tensors.tensors == "a, b, c"
    assert replace(tensors, different=("a", "b", "c", "d")).tensors == "a, b, c, …"
    assert rows_named(["a", "b"]) == "rows “a” and “b”"
    assert rows_named(["a", "b", "c"]) == "3 rows of the level table fit"


def test_a_slack_message() -> None:
    many = replace(NOTE, changes=tuple(f"change {at}" for at in range(11)))
    text = json.dumps(slack_message.message(many))
    assert "change 9" in text
    assert "change 10" not in text
    assert text.count("and 1 more") == 1
    fits = replace(NOTE, changes=many.changes[:10])
    assert "more" not in json.dumps(slack_message.message(fits))


def test_sequences_that_a_score_names() -> None:
    def said(number: int) -> str:
        off = [{"sample_id": f"s{at}", "replica": None} for at in range(number)]
        (line,) = _sequences(SimpleNamespace(sequences=off, scores={"r": range(100)}))
        return line

    assert said(10).endswith("s9")
    assert said(11).startswith("off: 11 of 100")
    assert said(11).endswith("s9, …")


def test_weight_versions_in_an_error() -> None:
    def task(number: int) -> SimpleNamespace:
        sequences = [SimpleNamespace(rollout_version=str(at), trainer_version=None) for at in range(number)]
        return SimpleNamespace(sequences=sequences, setup=SimpleNamespace(models={"": "path"}))

    with pytest.raises(ConfigurationError, match="versions 0, 1, 2, 3, 4; pass"):
        _check_versions(task(5))
    with pytest.raises(ConfigurationError, match="versions 0, 1, 2, 3, 4 and 1 more; pass"):
        _check_versions(task(6))


def test_late_runs() -> None:
    late = {f"run-{at}": Judgement(step=40, newest=99, behind=59, waiting=90.0) for at in range(11)}
    said = healthz.describe([], late=late, late_seconds=90.0)["judged"]
    assert isinstance(said, dict)
    assert (said["late_runs"], len(said["late"])) == (11, 10)


def test_files_that_wait() -> None:
    delays = Delays()
    for number in range(SHOWN + 1):
        delays.put_off(Path(f"{number}"), "run", "busy")
    assert (len(delays), len(delays.document())) == (SHOWN + 1, SHOWN)


def test_files_of_the_archive(tmp_path: Path) -> None:
    with Store.open(Home(tmp_path / "home")) as store:
        store.damaged.left.update({f"run/training/{number}": "foreign" for number in range(11)})
        *named, more = store.archive.problems()
        assert len(named) == 10
        assert more == "1 more files or folders of the archive are damaged or foreign"
