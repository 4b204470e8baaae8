"""The controller at work: looks at every run that moved on, decides, remembers, tells the trainer and tells people.

State, audit and messages are written in one transaction; the directive file follows from the stored state, and is written
again after a restart, so that a crash in between loses nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from logprobe.alerts.controller import decide, policy_file
from logprobe.alerts.controller.gather import Known, gather, look
from logprobe.alerts.controller.ledger import Memory, recall, records, remember, understood
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.controller.situation import Action, Control, Situation
from logprobe.alerts.notification import Notification
from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.sending.outbox import enqueue
from logprobe.collectors.directives import DirectiveFile, Directives, directive_key, encode, signed
from logprobe.collectors.errors import ConfigurationError, LogprobeError, ServiceUnavailableError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.service import part
from logprobe.monitor.service.action import Action as ServiceAction
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.store.store import Store

SECONDS: Final = 1.0
_TOKENS_A_SECOND: Final = 20_000  # of a preview; it takes a tenth of the time that the run then rests
_LIVE: Final = timedelta(days=1)  # a run that ended before that has no trainer to tell
_RUN: Final = re.compile(r"\bRUN\b")
RULE: Final = "correction_controller"
# The alert rule `correction-not-acknowledged` says so, and when it is over
_NOTIFIED_BY_RULES: Final = {"not_acknowledged"}
ACTION: Final = "correction.command"
POLICY: Final = "correction.policy"
COMMANDS: Final = ("on", "off", "suggest", "armed", "stop", "release")

Mark = tuple[Any, ...]  # the same as long as there is nothing new to see of a run
Decide = Callable[[Control, Situation, Policy], decide.Decision]


class Controller:
    """One home's controller. `run_once` belongs to one thread at a time; the actions may come from any."""

    def __init__(
        self, store: Store, policies: Callable[[str], Policy], clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """`policies`: of a run, by name, as it is now."""
        self._store = store
        self._policies = policies
        self._clock = clock
        self._lock = threading.Lock()  # decisions of people and of the job, one at a time
        self._seen: dict[str, Mark] = {}
        self._rest_until: dict[str, float] = {}
        # As the job's look at all runs read them; those that were decided about since are taken out.
        self._records: dict[str, dict[str, Any] | None] = {}

    def run_once(self) -> dict[str, Any]:
        """Looks at the runs that moved on; how many there were, and what was done.

        Raises the first `LogprobeError` or `OSError`, after all runs have had their turn; what failed is tried again.
        """
        failed: list[Exception] = []
        moved: dict[str, tuple[int, Mark]] = {}
        for row in self._store.read("controller_runs").to_pylist():
            with _collected(failed):
                if (mark := self._news(row)) is not None:
                    moved[row["run"]] = (row["step"], mark)
        known = self._look({run: step for run, (step, _) in moved.items()})
        looked = done = 0
        for run, (step, mark) in moved.items():
            with _collected(failed):
                done += len(self._decide(run, step, decide.advance, known=known[run]))
                self._seen[run] = mark
                looked += 1
        if failed:
            raise failed[0]
        return {"runs": looked, "actions": done}

    def _news(self, row: Mapping[str, Any]) -> Mark | None:
        """What there is to see of a run now; None: nothing is new, or it rests."""
        run = row["run"]
        mark = (row["revision"], row["diagnosed_at"], self._file(run).stop_path.exists(), self._policies(run))
        ended = row["time"] is not None and self._clock() - row["time"] > _LIVE
        resting = self._rest_until.get(run, 0.0) > time.monotonic()
        return None if self._seen.get(run) == mark or ended or resting else mark

    def _look(self, steps: Mapping[str, int]) -> dict[str, Known]:
        """At runs and their newest steps, all at once: a small statement takes milliseconds, whatever it reads."""
        if not steps:
            return {}
        with self._lock:
            found = records(self._store, list(steps))
            self._records = {run: found.get(run) for run in steps}
        return look(self._store, steps)

    def command(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What a person asks for: ``{"run", "command", "by", "force"}``, the command being one of `COMMANDS`.

        Returns ``{"run", "actions": [{"name", "reason", "words", "severity"}]}``; no actions: nothing was left to do. Raises
        `ConfigurationError` for an unknown run or command.
        """
        run, command = str(request.get("run") or ""), str(request.get("command") or "")
        if command not in COMMANDS:
            raise ConfigurationError(f"unknown command {command!r}; there are {', '.join(COMMANDS)}")
        steps = {row["run"]: row["step"] for row in self._store.read("controller_runs").to_pylist()}
        if run not in steps:
            raise ConfigurationError(f"no run {run!r} with metrics in this home; `logprobe runs` lists them")
        by = str(request.get("by") or "somebody")
        if command == "stop":
            self._file(run).stop(f"{self._clock().isoformat()} {by}")
        elif command == "release":
            self._file(run).release()
        decision = _decision(command, by, force=request.get("force") is True)
        actions = self._decide(run, steps[run], decision, previewing=command == "on")
        told = ("name", "reason", "words", "severity")
        return {"run": run, "actions": [{name: getattr(action, name) for name in told} for action in actions]}

    def directives(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The directives of ``{"run"}`` as the trainer's switch reads them."""
        run = str(request.get("run") or "")
        stopped = self._file(run).stop_path.exists()
        known = recall(self._store, run).directives
        return signed(replace(known, stopped=stopped), directive_key(self._store.home.path))

    def _decide(
        self, run: str, step: int, decision: Decide, *, previewing: bool = False, known: Known | None = None
    ) -> Sequence[Action]:
        with self._lock:
            memory, policy = self._memory(run), self._policies(run)
            situation = gather(
                self._store,
                run,
                step,
                memory.control,
                policy,
                stopped=self._file(run).stop_path.exists(),
                previewing=previewing,
                known=known,
            )
            if situation.preview is not None:
                self._rest_until[run] = time.monotonic() + situation.preview.tokens // _TOKENS_A_SECOND
            control, actions = _naming(run, *decision(memory.control, situation, policy))
            directives = _directives(memory, control, actions, off_from=step + policy.notice_steps)
            if control != memory.control or actions:
                self._save(replace(memory, control=control, directives=directives), actions, step)
            self._publish(directives)
            return actions

    def _memory(self, run: str) -> Memory:
        if run in self._records:
            return understood(run, self._records.pop(run))
        return recall(self._store, run)

    def _save(self, memory: Memory, actions: Sequence[Action], step: int) -> None:
        now = self._clock()
        with self._store.transaction() as cursor:
            remember(self._store, cursor, memory, actions, step=step, now=now)
            for number, action in enumerate(actions, start=memory.actions + 1):
                if action.name in _NOTIFIED_BY_RULES:
                    continue
                enqueue(self._store, cursor, notification(memory, number, action, step=step, now=now))

    def _publish(self, directives: Directives) -> None:
        """Writes the file unless it says so already; one that was lost or changed is put right."""
        if not directives.entries:
            return
        file, key = self._file(directives.run), directive_key(self._store.home.path)
        if not _says(file, encode(directives, key)):
            file.write(directives, key)

    def _file(self, run: str) -> DirectiveFile:
        return DirectiveFile(self._store.home.path, run)


@contextmanager
def _collected(failed: list[Exception]) -> Iterator[None]:
    """Notes what fails about one run: a state, a key, a file. The other runs come first."""
    try:
        yield
    except (LogprobeError, OSError) as error:
        failed.append(error)


def _says(file: DirectiveFile, content: bytes) -> bool:
    """Whether a file has this content; one that cannot be read, such as a link, is replaced like one that says something else."""
    try:
        return file.content() == content
    except OSError:
        return False


def controller_part(store: Store, _: threading.Event) -> part.Part:
    """The controller as a part of the service. Raises `ConfigurationError` when the home's ``correction.yaml`` is wrong.

    The file is read again when it changes; wrong, it is not taken over, and the job says so.
    """
    home = store.home.path
    policies = Reloaded(home / policy_file.FILE, lambda: policy_file.load(home))

    def policy(run: str) -> Policy:
        return policies.current()(run)

    controller = Controller(store, policy)

    def in_force(request: Mapping[str, Any]) -> dict[str, Any]:
        return {**stated(policy(str(request.get("run") or ""))), "problem": policies.problem}

    def work() -> dict[str, Any]:
        policies.current()  # also without a run, so that a mistake is said
        return {**controller.run_once(), **policies.report()}

    return part.Part(
        jobs=[Job("controller", SECONDS, work)],
        actions={
            ACTION: ServiceAction("switch the correction of a run, or its mode", controller.command),
            POLICY: ServiceAction("the effective policy of a run", in_force),
            "directives": ServiceAction("the directives for a run's trainer", controller.directives),
        },
    )


def stated(policy: Policy) -> dict[str, Any]:
    """What a page or the command line says of a policy: ``mode, config, effect_steps``."""
    return {"mode": policy.mode.value, "config": policy.correction.to_dict(), "effect_steps": policy.effect_steps}


def notification(memory: Memory, number: int, action: Action, *, step: int, now: datetime) -> Notification:
    """What people hear of an action; all messages about one switching of a run's correction share a thread."""
    run = memory.directives.run
    return Notification(
        key=f"{run}/{RULE}/{number}",
        run=run,
        rule=RULE,
        episode=f"{run}/{RULE}/{memory.control.switches}",
        state=action.name,
        severity=action.severity,
        at=now,
        step=step,
        summary=action.words,
        layer="objective",
        labels={"reason": action.reason},
    )


def _directives(memory: Memory, control: Control, actions: Sequence[Action], *, off_from: int) -> Directives:
    """The directives after `actions`: one entry for each that changes what the trainer does. Off also needs notice."""
    known = memory.directives
    for action in actions:
        if action.name == "switched_on" and control.from_step is not None:
            known = known.issue(control.from_step, control.config, action.words)
        elif action.name in {"switched_off", "rolled_back"} and memory.control.on:
            known = known.issue(off_from, None, action.words)
    return known


def _decision(command: str, by: str, *, force: bool) -> Decide:
    """What a command decides; stop and release only make the controller look again, and note who asked for it."""

    def decision(control: Control, situation: Situation, policy: Policy) -> decide.Decision:
        if command == "on":
            return decide.switch_on(control, situation, policy, by=by, force=force)
        if command == "off":
            return decide.switch_off(control, situation.step, by=by)
        return decide.set_mode(control, Mode(command), by=by)

    def switch(control: Control, situation: Situation, policy: Policy) -> decide.Decision:
        after, actions = decide.advance(control, situation, policy)
        return after, tuple(_by(action, by) if action.reason == "kill_switch" else action for action in actions)

    return switch if command in {"stop", "release"} else decision


def _naming(run: str, control: Control, actions: Sequence[Action]) -> decide.Decision:
    """Commands in sentences can be pasted: the run's name where they say RUN."""
    waiting = None if control.waiting is None else _RUN.sub(lambda _: run, control.waiting)
    named = tuple(replace(action, words=_RUN.sub(lambda _: run, action.words)) for action in actions)
    return replace(control, waiting=waiting), named


def _by(action: Action, by: str) -> Action:
    return replace(action, words=f"{action.words}, by {by}", details={**action.details, "by": by})


def perform(home: Home, request: Mapping[str, Any]) -> dict[str, Any]:
    """`Controller.command`, through the service if one runs, else with the home to ourselves.

    The kill switch is set before anybody is asked: it works whatever state service and store are in.

    Raises `ConfigurationError` when what is asked makes no sense, `HomeBusyError` or `StoreError` when the home cannot be had.
    """
    if request.get("command") == "stop" and request.get("run") and home.path.is_dir():
        DirectiveFile(home.path, str(request["run"])).stop(f"{datetime.now(UTC).isoformat()} {request.get('by')}")
    try:
        with connect(home) as reader:
            return reader.act(ACTION, request)
    except ServiceUnavailableError:
        if home.owner() is not None:
            raise
    with home.lock(), Store.open(home) as store:
        return Controller(store, policy_file.load(home.path)).command(request)
