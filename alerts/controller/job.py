"""Controller stage: examines each changed run, decides, and informs trainer and users.

State, audit and messages are written in one transaction. The directive file derives from the stored state. It is
rewritten after a restart, so a crash loses no state.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict

import duckdb

from logprobe.alerts.controller import decide
from logprobe.alerts.controller.gather import Known, gather, look, trained_steps
from logprobe.alerts.controller.policy import POLICY, SECTION, InForce, Mode, Policy, load, stated
from logprobe.alerts.controller.situation import Action, Control, Phase, Situation
from logprobe.alerts.notification import CONTROLLER, Notification
from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.sending.outbox import enqueue
from logprobe.collectors.directives import DirectiveFile, Directives, decode, directive_key, encode
from logprobe.collectors.errors import ConfigurationError, DirectiveError, ServiceUnavailableError, StoreError
from logprobe.collectors.recorder.documents import canonical_json
from logprobe.monitor import judgement, queries
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import Severity
from logprobe.monitor.reader import connect
from logprobe.monitor.service.action import Action as ServiceAction
from logprobe.monitor.service.jobs import Job, Part, Progress
from logprobe.monitor.service.turns import Pace, Priority, Row, Turns, as_of, priority
from logprobe.monitor.store.courtesy import Rank
from logprobe.monitor.store.store import Store


@dataclass(frozen=True, slots=True)
class Memory:
    """Stored state of one run: control, issued directives and number of the last action."""

    control: Control
    directives: Directives
    actions: int = 0


def recall(store: Store, run: str) -> Memory:
    """Return the memory of `run`. Raise `StoreError` if the stored state cannot be read."""
    return understood(store.home, run, records(store, [run]).get(run))


def records(store: Store, runs: Sequence[str]) -> dict[str, queries.ControllerRead]:
    """Return the stored memory of runs. Omit runs without one."""
    return {row["run"]: row for row in queries.controller_read(store, runs=list(runs)).to_pylist()}


def understood(home: Home, run: str, row: Mapping[str, Any] | None) -> Memory:
    """Return the memory of a run. Raise `StoreError` if the stored state cannot be read.

    A memory older than the published directives resumes from these directives. A correction that the trainers apply is
    then on, and directive numbers continue. Trainers would refuse a reused number. A lost store is empty, or as old as
    the journal that it was rebuilt from.

    Args:
        home: data directory with the published directives.
        run: name of the run.
        row: one of `records`, or None without a stored memory.
    """
    try:
        told = DirectiveFile(home.path, run).issued(directive_key(home.path))
    except (OSError, DirectiveError, ConfigurationError):
        told = Directives(run)
    memory = Memory(Control(), Directives(run)) if row is None else _parsed(run, row)
    if told.version <= memory.directives.version:
        return memory
    newest = told.entries[-1]
    phase = (
        Phase.ISSUED if newest.config is not None else Phase.WITHDRAWN if memory.control.on else memory.control.phase
    )
    control = replace(memory.control, phase=phase)
    if newest.config is not None:
        control = replace(
            control, config=newest.config, from_step=newest.from_step, masked_from=None, applied_from=None
        )
    return replace(memory, control=control, directives=told)


def _parsed(run: str, row: Mapping[str, Any]) -> Memory:
    try:
        control = Control.parse(json.loads(row["control"]))
        return Memory(control, decode(row["directives"].encode(), run, None), row["actions"])
    except (LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"the controller's state of run {run!r} cannot be read ({error}); upgrade logprobe if a newer one wrote it"
        ) from error


def remember(
    store: Store,
    cursor: duckdb.DuckDBPyConnection,
    memory: Memory,
    actions: Sequence[Action],
    *,
    step: int | None,
    now: datetime,
) -> None:
    """Store the state and append `actions` to the audit, inside a transaction. `memory.actions`: number of the last
    earlier action.
    """
    run = memory.directives.run
    store.execute(
        cursor,
        "controller_save",
        run=run,
        control=canonical_json(memory.control.document()),
        directives=canonical_json(memory.directives.document()),
        now=now,
    )
    for number, action in enumerate(actions, start=memory.actions + 1):
        store.execute(
            cursor,
            "controller_act",
            run=run,
            number=number,
            step=step,
            now=now,
            name=action.name,
            reason=action.reason,
            words=action.words,
            severity=action.severity,
            details=canonical_json(action.details),
        )


SECONDS: Final = 5.0  # what a file brings: the settings, a kill switch that was set while no service ran
# A preview of many tokens takes seconds, and is repeated as long as the verdict calls for a correction that is refused.
PACES: Final = {level: Pace(share=0.3, rest=10) for level in Priority}
_RUNS_PER_TURN: Final = 128
_LIVE: Final = timedelta(days=1)  # a run that ended before that has no trainer to tell
_RUN: Final = re.compile(r"\bRUN\b")
ACTION: Final = "correction.command"
COMMANDS: Final = ("on", "off", "suggest", "armed", "stop", "release")


class Told(TypedDict):
    """An `Action` as shown to the user who requested it."""

    name: str
    reason: str
    words: str
    severity: str


class Commanded(TypedDict):
    """Result of a command, without actions if it changed nothing."""

    run: str
    actions: list[Told]


_STOPPED: Final = Action(
    "stopped",
    "kill_switch",
    "kill switch set: no correction is applied; the service does not answer now and notes it later",
    "warning",
)

Mark = tuple[Any, ...]  # the same as long as there is nothing new to see of a run
Decide = Callable[[Control, Situation, Policy], decide.Decision]


class Controller:
    """Controller of a data directory, a stage. Only one thread at a time may call `run_once`. Any thread may issue
    commands.
    """

    name = "controller"
    together = _RUNS_PER_TURN

    def __init__(
        self,
        store: Store,
        policies: Callable[[str], Policy],
        clock: Callable[[], datetime] | None = None,
        *,
        stopping: threading.Event | None = None,
        paces: Mapping[Priority, Pace] | None = None,
    ) -> None:
        """Set up the controller. `policies`: source of the present policy of a run. `clock`: time source, or None for
        the store's. `stopping`, `paces`: see `Turns`.
        """
        self._store = store
        self._policies = policies
        self._clock = clock or store.time.now
        self._turns = Turns(self, stopping, paces=paces)
        self._lock = threading.Lock()  # decisions of people and of the job, one at a time
        self._seen: dict[str, Mark] = {}
        self._armed: dict[str, bool] = {}
        # As the job's look at all runs read them; those that were decided about since are taken out.
        self._records: dict[str, queries.ControllerRead | None] = {}

    def run_once(self) -> Progress:
        """Process the runs with new steps, each in its turn (see `Turns.run_once`)."""
        return self._turns.run_once()

    def rows(self) -> Sequence[Row]:
        """Return runs with steps, each with a `mark` that changes when its data change."""
        diagnosed = {row["run"]: row["diagnosed_at"] for row in queries.diagnosis_done(self._store.kept).to_pylist()}
        rows = as_of(queries.runs_now(self._store.kept_records), self._clock())
        return [{**row, "mark": self._mark(row, diagnosed.get(row["run"]))} for row in rows if row["step"] is not None]

    def due(self, row: Row) -> Priority | None:
        """Return the priority of a run with new steps, or None. A run that ended long ago has no trainer to inform, so
        no priority.
        """
        ended = self._clock() - row["made_at"] > _LIVE
        if ended or self._seen.get(row["run"]) == row["mark"]:
            return None
        return priority(live=row["live"], armed=self.armed(row["run"]), first=row["run"] not in self._seen)

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Examine, decide and inform. Return the number of actions. Raise `LogprobeError` or `OSError`, after which the
        caller retries.
        """
        seen = self._look({row["run"]: row["trained_step"] for row in rows})
        done = 0
        for row in rows:
            done += len(self._decide(row["run"], row["trained_step"], decide.advance, seen=seen[row["run"]]))
            self._seen[row["run"]] = row["mark"]
        return {"actions": done}

    def armed(self, run: str) -> bool:
        """Return whether a correction of `run` may be switched without a user's command."""
        return self._armed.get(run, self._policies(run).mode is Mode.ARMED)

    def _mark(self, row: Mapping[str, Any], diagnosed_at: datetime | None) -> Mark:
        run = row["run"]
        return (row["revision"], diagnosed_at, self._file(run).stop_path.exists(), self._policies(run))

    def _look(self, steps: Mapping[str, int]) -> dict[str, Known]:
        """Read runs and their newest steps in one statement, since each statement costs milliseconds."""
        if not steps:
            return {}
        with self._lock:
            by_run = records(self._store, list(steps))
            self._records = {run: by_run.get(run) for run in steps}
        return look(self._store, steps)

    def command(self, request: Mapping[str, Any]) -> Commanded:
        """Perform a user's command ``{"run", "command", "by", "force"}``, one of `COMMANDS`.

        Raises `ConfigurationError` for an unknown run or command.
        """
        run, command = str(request.get("run") or ""), str(request.get("command") or "")
        if command not in COMMANDS:
            raise ConfigurationError(f"unknown command {command!r}; choose one of: {', '.join(COMMANDS)}")
        steps = trained_steps(self._store)
        if run not in steps:
            raise ConfigurationError(f"no run {run!r} with metrics in this home; `logprobe runs` lists them")
        by = str(request.get("by") or "somebody")
        if command == "stop":
            self._file(run).stop(f"{self._clock().isoformat()} {by}")
        elif command == "release":
            self._file(run).release()
        decision = _decision(command, by, force=request.get("force") is True)
        actions = self._decide(run, steps[run], decision, previewing=command == "on")
        return {"run": run, "actions": [_reported(action) for action in actions]}

    def _decide(
        self, run: str, step: int, decision: Decide, *, previewing: bool = False, seen: Known | None = None
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
                seen=seen,
                directives=memory.directives,
            )
            control, actions = _naming(run, *decision(memory.control, situation, policy))
            self._armed[run] = control.on or (control.mode or policy.mode) is Mode.ARMED
            directives = _directives(memory, control, actions, off_from=step + policy.notice_steps)
            if control != memory.control or actions:
                self._save(replace(memory, control=control, directives=directives), actions, step)
            self._publish(directives)
            return actions

    def _memory(self, run: str) -> Memory:
        if run in self._records:
            return understood(self._store.home, run, self._records.pop(run))
        return recall(self._store, run)

    def _save(self, memory: Memory, actions: Sequence[Action], step: int) -> None:
        now = self._clock()
        notes = self._notes(memory, actions, step, now) if actions else ()
        with self._store.transaction(records=False) as cursor:
            remember(self._store, cursor, memory, actions, step=step, now=now)
            for note in notes:
                enqueue(self._store, cursor, note)

    def _notes(self, memory: Memory, actions: Sequence[Action], step: int, now: datetime) -> Sequence[Notification]:
        run = memory.directives.run
        severity = judgement.read(self._store, [run], now)[run].severity
        return [
            notification(memory, number, action, step=step, now=now, severity=severity)
            for number, action in enumerate(actions, start=memory.actions + 1)
        ]

    def _publish(self, directives: Directives) -> None:
        """Write the file unless it already has this content. Replace a lost or changed file."""
        if not directives.entries:
            return
        file, key = self._file(directives.run), directive_key(self._store.home.path)
        if not _says(file, encode(directives, key)):
            file.write(directives, key)

    def _file(self, run: str) -> DirectiveFile:
        return DirectiveFile(self._store.home.path, run)


def _says(file: DirectiveFile, content: bytes) -> bool:
    """Return whether a readable file has this content. The caller replaces a file that is unreadable, such as a
    link.
    """
    try:
        return file.content() == content
    except OSError:
        return False


def controller_part(store: Store, stopping: threading.Event) -> Part:
    """Return the controller as a part of the service. Raise `ConfigurationError` for an invalid section `correction`.

    Changed settings are read again. Invalid settings are not applied, and the job reports them.
    """
    home = store.home.path
    policies = Reloaded(home, SECTION, lambda: load(home))

    def policy(run: str) -> Policy:
        return policies.current()(run)

    controller = Controller(store, policy, stopping=stopping, paces=PACES)

    def in_force(request: Mapping[str, Any]) -> InForce:
        return {**stated(policy(str(request.get("run") or ""))), "problem": policies.problem}

    def work() -> Progress:
        policies.current()  # also without a run, so that a mistake is said
        return {**controller.run_once(), **policies.report()}

    return Part(
        jobs=[Job("controller", SECONDS, work, rank=Rank.DECISION, follows=True)],
        actions={
            ACTION: ServiceAction("switch the correction of a run, or its mode", controller.command),
            POLICY: ServiceAction("the effective policy of a run", in_force),
        },
        armed=controller.armed,
    )


def notification(
    memory: Memory, number: int, action: Action, *, step: int, now: datetime, severity: Severity
) -> Notification:
    """Return the notification of an action. Messages about one switch of a run's correction share a thread.

    `severity`: severity of the whole run.
    """
    run = memory.directives.run
    return Notification(
        key=f"{run}/{CONTROLLER}/{number}",
        run=run,
        rule=CONTROLLER,
        episode=f"{run}/{CONTROLLER}/{memory.control.switches}",
        state=action.name,
        severity=action.severity,
        level="info" if action.name == "acknowledged" else action.severity,
        at=now,
        step=step,
        summary=action.words,
        layer="objective",
        run_severity=severity,
    )


def _directives(memory: Memory, control: Control, actions: Sequence[Action], *, off_from: int) -> Directives:
    """Return the directives after `actions`, one entry per change. Switching off also adds an entry."""
    directives = memory.directives
    for action in actions:
        if action.name == "switched_on" and control.from_step is not None:
            directives = directives.issue(control.from_step, control.config, action.words)
        elif action.name in {"switched_off", "rolled_back"} and (memory.control.on or action.reason == "returned"):
            directives = directives.issue(off_from, None, action.words)
    return directives


def _decision(command: str, by: str, *, force: bool) -> Decide:
    """Return the decision of a command. Stop and release only record the user and trigger another look."""

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
    """Replace RUN with the run's name, so that users can paste the commands in sentences."""
    waiting = None if control.waiting is None else _RUN.sub(lambda _: run, control.waiting)
    named = tuple(replace(action, words=_RUN.sub(lambda _: run, action.words)) for action in actions)
    return replace(control, waiting=waiting), named


def _reported(action: Action) -> Told:
    return {"name": action.name, "reason": action.reason, "words": action.words, "severity": action.severity}


def _by(action: Action, by: str) -> Action:
    return replace(action, words=f"{action.words}, by {by}", details={**action.details, "by": by})


def perform(home: Home, request: Mapping[str, Any]) -> Commanded:
    """Perform `Controller.command` through the service, or without a service as owner of the data directory.

    The kill switch is set first, so that it works in any state of service and store.

    Raises `ConfigurationError` for an invalid command, and `HomeBusyError` or `StoreError` if the data directory is
    unavailable.
    """
    if request.get("command") == "stop" and request.get("run") and home.path.is_dir():
        DirectiveFile(home.path, str(request["run"])).stop(f"{datetime.now(UTC).isoformat()} {request.get('by')}")
    try:
        with connect(home) as reader:
            done: Commanded = reader.act(ACTION, request)
            return done
    except ServiceUnavailableError:
        if home.owner() is not None:
            if request.get("command") == "stop":  # that file is what trainers and nodes go by
                return {"run": str(request.get("run")), "actions": [_reported(_STOPPED)]}
            raise
    with home.lock(), Store.open(home) as store:
        return Controller(store, load(home.path)).command(request)
