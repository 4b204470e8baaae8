"""Another user of the same machine, for tests: work that is done under a real second uid."""

from __future__ import annotations

import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
MALLORY, TRAINER, SERVICE, GROUP = 65_533, 64_001, 64_002, 64_100


def as_user(work: Callable[[], T], uid: int = MALLORY, gid: int | None = None, umask: int = 0o022) -> T:
    """What `work` returns, or raises, in a child that has given up root for good. A fork: another user may not read this interpreter."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; it runs where the tests run as root, as in a container")
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads; the child uses none of theirs
        child = os.fork()
    if child == 0:
        _in_child(work, (uid, uid if gid is None else gid, umask), sending)
    os.close(sending)
    with os.fdopen(receiving, "rb") as answers:
        content = answers.read()
    os.waitpid(child, 0)
    outcome: tuple[Any, BaseException | None] = pickle.loads(content)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def _in_child(work: Callable[[], Any], who: tuple[int, int, int], sending: int) -> None:
    try:
        uid, gid, umask = who
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        os.umask(umask)
        os.environ["HOME"] = "/nonexistent"
        content = pickle.dumps((work(), None))
    except BaseException as error:
        traceback.print_exc()
        try:
            content = pickle.dumps((None, error))
        except Exception:
            content = pickle.dumps((None, AssertionError(f"{type(error).__name__}: {error}")))
    with os.fdopen(sending, "wb") as answers:
        answers.write(content)
    os._exit(0)
