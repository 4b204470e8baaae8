"""Handing a run over to another home: what each of the two does, as actions, each of which can be repeated after a kill
anywhere.

    its old home  pack     from now on nothing of the run is stored here; the rows leave the store for a package
    its new home  unpack   the package is copied, proven and stored, in one transaction that the audit names
    its old home  settle   after that proof: segments are forwarded, and the package is removed

    undone before it has arrived: refuse, at the new home, which then never takes this move; take_back, at the old one

The audit of each home says what was done, in the same transaction: so a repeated action knows.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.collectors.files import READABLE, replace_file
from logprobe.collectors.relay.exchange import FROM_SERVICE
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor import queries
from logprobe.monitor.deletion.part import delete_rows, in_tables, is_there
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.fleet import package
from logprobe.monitor.fleet.forwarding import Forwarder
from logprobe.monitor.fleet.moved import Moved
from logprobe.monitor.home import Home
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.store.raw_files import note_pending, notes_of
from logprobe.monitor.store.schema import VERSION
from logprobe.monitor.store.store import Store

PACK: Final = "fleet.pack"
UNPACK: Final = "fleet.unpack"
SETTLE: Final = "fleet.settle"
REFUSE: Final = "fleet.refuse"
TAKE_BACK: Final = "fleet.take_back"
FORWARD: Final = "fleet.forward"
_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 3600.0
_LEFT: Final = "run handed over"
_ARRIVED: Final = "run taken over"
_REFUSED: Final = "move of a run undone"
_BACK: Final = "run taken back"
_TURN: Final = threading.Lock()  # an action that is asked again, because a connection broke, waits for the first


def part(store: Store, _: threading.Event) -> Part:
    """What the service offers, and its forwarding."""
    return Part(jobs=[Job("fleet", _SECONDS, Forwarder(store).run_once)], actions=actions.offered(_ACTIONS, store))


def perform(home: Home, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Does one, through the home's service if one runs, else directly. Raises as `actions.perform`."""
    answer: dict[str, Any] = actions.perform(_ACTIONS, home, name, document, seconds=_ANSWER_SECONDS)
    return answer


def leaving(home: Home, run: str) -> Path:
    """Where the package of a run is."""
    return home.path / "leaving" / run_dir(home.path, run).name


def _arriving(home: Home, run: str) -> Path:
    return home.path / "arriving" / run_dir(home.path, run).name


def _pack(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """``{"run", "move", "to", "author"}`` → ``{"package", "sha256", "settled"}``."""
    run, move, to = actions.run_of(document), actions.text(document, "move"), actions.text(document, "to")
    home, moved = store.home, store.moved
    with _TURN:
        departure, folder = moved.find(run), leaving(home, run)
        if departure is not None and departure.move != move:
            raise ConfigurationError(
                f"run {run!r} belongs to service {departure.to!r} since {departure.at}, or is on its way there"
            )
        if departure is not None and departure.home is not None:
            shutil.rmtree(folder, ignore_errors=True)
            return {"package": str(folder), "sha256": None, "settled": True}
        if _noted(store, run, _BACK, move):
            raise ConfigurationError(f"this move of {run!r} was undone; begin another one")
        gone = _has_left(store, run, move, folder)
        if not gone and not is_there(store, run):
            raise ConfigurationError(f"no run {run!r} in {home.path}; `logprobe runs` lists them")
        store.raw.require()
        moved.leave(Moved(run, move, to, None, now.isoformat(timespec="seconds")))
        if not gone:
            _leave(store, run, move, folder, author=actions.text(document, "author"), to=to, now=now)
        manifest = package.read_manifest(folder)
        package.clear(home, manifest)
        return {"package": str(folder), "sha256": manifest["sha256"], "settled": False}


def _has_left(store: Store, run: str, move: str, folder: Path) -> bool:
    """Whether a run is in its package and not in the store any more; also if the store, and with it its audit, was lost
    since.

    Raises `StoreError` when both have records, and not the same.
    """
    if _noted(store, run, _LEFT, move):
        return True
    if not (folder / package.MANIFEST).exists():
        return False
    manifest = package.read_manifest(folder)
    if manifest["move"] != move or not in_tables(store, [run]):
        return bool(manifest["move"] == move)
    with store.transaction() as cursor:
        stored = package.digest(cursor, "segments", run)
    if stored[0] and stored != manifest["tables"].get("segments"):
        raise StoreError(
            f"{folder} and the store have other records of {run!r}, as after a restore: move one of them away; which, "
            "only you know"
        )
    return False


def _leave(store: Store, run: str, move: str, folder: Path, *, author: str, to: str, now: datetime) -> None:
    home = store.home
    try:
        with store.holding_files():
            packer = package.Packer(store, run, folder)
            packer.collect_raw()  # the most of it, while others write
            with store.transaction() as cursor:
                raw = packer.collect_raw()
                sums = packer.write(cursor, move, VERSION)
                note_pending(home, raw)
                delete_rows(store, cursor, run)
                store.execute(
                    cursor,
                    "alert_audit_write",
                    time=now,
                    author=author,
                    action=_LEFT,
                    subject=run,
                    words=f"{move} to {to}, package {sums}",
                )
                store.refresh_steps_view(cursor)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written ({error}); nothing was moved: make room and repeat the command"
        ) from error


def _unpack(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """``{"run", "move", "package", "author"}`` → ``{"sha256", "rows", "files"}``: of what is stored here now."""
    run, move = actions.run_of(document), actions.text(document, "move")
    with _TURN:
        if not _noted(store, run, _ARRIVED, move):
            if _noted(store, run, _REFUSED, move):
                raise ConfigurationError(f"this move of {run!r} was undone; begin another one")
            source = Path(actions.text(document, "package"))
            _bring(store, run, move, source, _ARRIVED, author=actions.text(document, "author"), now=now)
        store.moved.remove(run)  # of an earlier move away from here
        shutil.rmtree(_arriving(store.home, run), ignore_errors=True)
        (words,) = _noted(store, run, _ARRIVED, move)
        _, sums, rows, files = words.split(" ")[:4]
        return {"sha256": sums, "rows": int(rows), "files": int(files)}


def _bring(store: Store, run: str, move: str, source: Path, action: str, *, author: str, now: datetime) -> None:
    home, staged = store.home, _arriving(store.home, run)
    store.raw.require()
    tombstone = Tombstones(home).find(run)
    if tombstone is not None and tombstone.released_at is None and action == _ARRIVED:
        raise ConfigurationError(
            f"run {run!r} was deleted in {home.path} at {tombstone.deleted_at}; to use the name again: logprobe delete "
            "--release"
        )
    stated = package.read_manifest(source)
    if (stated["run"], stated["move"], stated["schema"]) != (run, move, VERSION):
        raise StoreError(
            f"{source} is of run {stated['run']!r}, move {stated['move']}, schema {stated['schema']}; both services "
            "need the same logprobe"
        )
    manifest = package.stage(home, source, staged)
    raw = package.raw_of(manifest)
    rows = sum(sums[0] for sums in manifest["tables"].values())
    words = f"{move} {manifest['sha256']} {rows} {len(manifest['files'])} (package, rows, files)"
    try:
        with store.transaction() as cursor:
            package.note_arriving(home, raw)
            package.bring_in(store, cursor, staged, manifest)
            store.execute(cursor, "alert_audit_write", time=now, author=author, action=action, subject=run, words=words)
            store.refresh_steps_view(cursor)
    except OSError as error:
        raise StoreError(
            f"{home.path} cannot be written ({error}); nothing was changed: make room and repeat the command"
        ) from error
    stop = DirectiveFile(home.path, run).stop_path
    if home.relative(stop) not in manifest["files"] and stop.is_file() and stop.read_bytes() == FROM_SERVICE.encode():
        stop.unlink()  # taken back by the home that the run comes from
    store.arrivals += 1
    store.retire(notes_of(home, raw), read=False)


def _settle(store: Store, document: Mapping[str, Any], _: datetime) -> dict[str, Any]:
    """``{"run", "move", "home", "sha256"}`` → ``{"run"}``; `sha256`: of the package, as the new home proved it."""
    run, move, to = actions.run_of(document), actions.text(document, "move"), actions.text(document, "home")
    with _TURN:
        moved, folder = store.moved, leaving(store.home, run)
        departure = moved.find(run)
        if departure is None or departure.move != move:
            raise ConfigurationError(f"run {run!r} is not on its way by this move")
        if departure.home is None:
            manifest = package.read_manifest(folder)
            if manifest["sha256"] != actions.text(document, "sha256"):
                raise StoreError(
                    f"{to} has proven another package than {folder}, which stays; run: logprobe fleet list"
                )
            stop = DirectiveFile(store.home.path, run).stop_path
            # The new home has it, too, and is to take it back for both.
            if store.home.relative(stop) in manifest["files"]:
                replace_file(stop, FROM_SERVICE.encode(), mode=READABLE)
            moved.write(Moved(run, move, departure.to, to, departure.at))
        shutil.rmtree(folder, ignore_errors=True)
        return {"run": run}


def _refuse(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """``{"run", "move", "author"}`` → ``{"arrived"}``: whether the run is here already; else it never will be by this
    move."""
    run, move = actions.run_of(document), actions.text(document, "move")
    with _TURN:
        arrived = bool(_noted(store, run, _ARRIVED, move))
        if not arrived:
            with store.transaction() as cursor:
                author = actions.text(document, "author")
                store.execute(
                    cursor, "alert_audit_write", time=now, author=author, action=_REFUSED, subject=run, words=move
                )
            shutil.rmtree(_arriving(store.home, run), ignore_errors=True)
        return {"arrived": arrived}


def _take_back(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """``{"run", "move", "author"}`` → ``{"run"}``."""
    run, move = actions.run_of(document), actions.text(document, "move")
    with _TURN:
        moved, folder = store.moved, leaving(store.home, run)
        departure = moved.find(run)
        if departure is not None and (departure.move != move or departure.home is not None):
            raise ConfigurationError(
                f"run {run!r} belongs to service {departure.to!r} since {departure.at}; move it back from there"
            )
        author = actions.text(document, "author")
        if not _noted(store, run, _BACK, move):
            if _has_left(store, run, move, folder):
                _bring(store, run, move, folder, _BACK, author=author, now=now)
            else:
                with store.transaction() as cursor:
                    store.execute(
                        cursor, "alert_audit_write", time=now, author=author, action=_BACK, subject=run, words=move
                    )
        moved.remove(run)
        for leftover in (folder, _arriving(store.home, run)):
            shutil.rmtree(leftover, ignore_errors=True)
        return {"run": run}


def _forward(store: Store, _: Mapping[str, Any], __: datetime) -> dict[str, Any]:
    """``{}`` → what `Forwarder.run_once` says: forwards now what waits, also where no service runs."""
    return Forwarder(store).run_once()


def _noted(store: Store, run: str, action: str, move: str) -> list[str]:
    return list(queries.fleet_noted(store, run=run, action=action, move=move)["words"].to_pylist())[:1]


_ACTIONS: Final[actions.Actions] = {
    PACK: ("take a run out of the store into a package", _pack),
    UNPACK: ("take a run from another home's package into the store", _unpack),
    SETTLE: ("forward what arrives of a run that another home has", _settle),
    REFUSE: ("never take a run by this move", _refuse),
    TAKE_BACK: ("take a run that has not arrived anywhere back into the store", _take_back),
    FORWARD: ("forward what has arrived of runs that other homes have", _forward),
}
