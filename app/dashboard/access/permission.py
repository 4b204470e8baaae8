"""Whether a visitor may act. Pure: what there is to know comes in, a named answer goes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from logprobe.app.dashboard.access.settings import Access, is_loopback

# Any of them says that a proxy stood between the browser and us, so that "from this machine" means nothing.
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


class Permission(Enum):
    """The words say why not, and what to do."""

    GRANTED = ""
    READ_ONLY = "this dashboard was started with --read-only; use the command line"
    NOT_LISTED = "you have read access only: your address is not under `act` in the home's secrets.toml"
    LOCKED = "enter the home's token above first; run `logprobe token` on the home's machine to show it"


@dataclass(frozen=True, slots=True)
class Visitor:
    """`may_act`: of who signed in, None where nobody has to; `unlocked`: typed the token; `direct`: no proxy in between, from this machine."""

    may_act: bool | None = None
    unlocked: bool = False
    direct: bool = False


def permission(access: Access, visitor: Visitor) -> Permission:
    """In this order: read-only for everybody; the lists, for who signs in; this machine itself; the token."""
    if access.read_only:
        return Permission.READ_ONLY
    if visitor.may_act is not None:
        return Permission.GRANTED if visitor.may_act else Permission.NOT_LISTED
    if (access.local and visitor.direct) or visitor.unlocked:
        return Permission.GRANTED
    return Permission.LOCKED


def is_direct(address: str | None, headers: Mapping[str, str]) -> bool:
    """Whether a request came from this machine without a proxy. `address`: of the client; None: this machine, as Streamlit has it."""
    names = {name.lower() for name in headers}
    return (address is None or is_loopback(address)) and not names.intersection(_FORWARDED)
