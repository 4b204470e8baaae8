"""Takes a process its rights, for good: no file to write, no file to read but below one folder, no network, no other
program.

Two layers of Linux do it, each by itself enough against writing: seccomp refuses the system calls, Landlock the paths.
Neither needs privileges. They hold for code, too, not only for SQL: a statement that took over the process could do no
more.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_LANDLOCK: Final = (444, 445, 446)  # create_ruleset, add_rule, restrict_self; the same numbers everywhere
_LANDLOCK_VERSION: Final = 1
_LANDLOCK_PATH: Final = 1
_FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 5: 16}  # version of Landlock → how many rights it knows
_READ: Final = 1 << 2 | 1 << 3  # files, folders
_LIST: Final = 1 << 3
_NET_SINCE, _SCOPE_SINCE = 4, 6

# System calls by name: number on x86_64, on aarch64 (None: not there).
_REFUSED: Final = {
    "creat": (85, None), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "unlink": (87, None),
    "unlinkat": (263, 35), "rmdir": (84, None), "mkdir": (83, None), "mkdirat": (258, 34), "mknod": (133, None),
    "mknodat": (259, 33), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "memfd_create": (319, 279), "open_by_handle_at": (304, 265),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "sendto": (44, 206),
    "sendmsg": (46, 211), "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "mount": (165, 40), "umount2": (166, 39),
    "move_mount": (429, 429), "chroot": (161, 51), "pivot_root": (155, 41), "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "setrlimit": (160, 164), "shmget": (29, 194), "msgget": (68, 186), "mq_open": (240, 180),
}  # fmt: skip
_OPEN: Final = {"open": ((2, None), 1), "openat": ((257, 56), 2)}  # which argument has the flags
_MISSING: Final = {
    "openat2": (437, 437),
    "clone3": (435, 435),
}  # their arguments are in memory; glibc does without
_CLONE: Final = (56, 220)
_CLONE_THREAD: Final = 0x10000
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_EPERM, _ENOSYS = 1, 38
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_X32: Final = 0x40000000


def limit(memory: int) -> None:
    """No file may grow by this process, no core be dumped, no more than `memory` bytes of addresses be taken besides
    what it has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) if sys.platform == "linux" else 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    space = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


def yield_to_others() -> None:
    """Others get the processor first, and when memory is short the kernel ends this process first."""
    os.nice(5)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def confine(folder: Path, *, listed: Path | None = None) -> list[str]:
    """Leaves this process the right to read below `folder`, and to list (not read) below `listed`.

    To be called while there is one thread; a right cannot be had back. Returns which layers hold: "landlock",
    "seccomp".
    """
    if sys.platform != "linux":
        return []
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"{threads} threads are running already, and only one would be confined")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return []
    layers = {"landlock": _landlock(libc, folder, listed), "seccomp": _seccomp(libc)}
    return [name for name, holds in layers.items() if holds]


def _landlock(libc: ctypes.CDLL, folder: Path, listed: Path | None) -> bool:
    create, _, restrict = _LANDLOCK
    version = libc.syscall(create, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version < 1:
        return False
    rights = max(count for since, count in _FILE_RIGHTS.items() if since <= version)
    asked = struct.pack(
        "QQQ", (1 << rights) - 1, 3 if version >= _NET_SINCE else 0, 3 if version >= _SCOPE_SINCE else 0
    )
    ruleset = libc.syscall(create, asked, ctypes.c_size_t(len(asked)), 0)
    if ruleset < 0:
        return False
    _allow(libc, ruleset, folder, _READ)
    if listed is not None:
        _allow(libc, ruleset, listed, _LIST)
    held = bool(libc.syscall(restrict, ruleset, 0) == 0)
    os.close(ruleset)
    return held


def _allow(libc: ctypes.CDLL, ruleset: int, folder: Path, rights: int) -> None:
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    libc.syscall(_LANDLOCK[1], ruleset, _LANDLOCK_PATH, struct.pack("=Qi", rights, descriptor), 0)
    os.close(descriptor)


def _seccomp(libc: ctypes.CDLL) -> bool:
    if platform.machine() not in _ARCHITECTURES:
        return False
    program = b"".join(_program(*_ARCHITECTURES[platform.machine()]))
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, described, 0, 0) == 0)


def _program(architecture: int, column: int) -> Iterator[bytes]:
    """The filter, in the kernel's small language. Flags and numbers are the lower halves of what the caller passes."""
    flags_at = 16  # the first argument
    yield _step(_LOAD, 4)
    yield _step(_EQUAL, architecture, 1, 0)
    yield _step(_RETURN, _REFUSE | _EPERM)
    yield _step(_LOAD, 0)  # the number of the call
    if column == 0:
        yield _step(_ABOVE, _X32, 0, 1)
        yield _step(_RETURN, _REFUSE | _EPERM)
    for answer, calls in ((_EPERM, _REFUSED), (_ENOSYS, _MISSING)):
        for numbers in calls.values():
            if numbers[column] is not None:
                yield _step(_EQUAL, numbers[column] or 0, 0, 1)
                yield _step(_RETURN, _REFUSE | answer)
    for numbers, place in _OPEN.values():
        if numbers[column] is not None:
            yield from _judged(numbers[column] or 0, flags_at + 8 * place, _WRITING, refused=True)
    yield from _judged(_CLONE[column], flags_at, _CLONE_THREAD, refused=False)
    yield _step(_RETURN, _ALLOW)


def _judged(number: int, at: int, bits: int, *, refused: bool) -> Iterator[bytes]:
    """Refuses a call if (or, with `refused` false, unless) one of `bits` is set in its argument at byte `at`."""
    yield _step(_EQUAL, number, 0, 4)
    yield _step(_LOAD, at)
    yield _step(_ANY_BIT, bits, 0, 1) if refused else _step(_ANY_BIT, bits, 1, 0)
    yield _step(_RETURN, _REFUSE | _EPERM)
    yield _step(_RETURN, _ALLOW)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
