"""The processes of one data directory for `logprobe up` and `logprobe demo`: the monitor service and the dashboard."""

from __future__ import annotations

import importlib.util
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

from logprobe.app.dashboard.access import token
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.access.sign_in import FILE, load
from logprobe.app.dashboard.theme import streamlit_options
from logprobe.app.processes import logger
from logprobe.app.processes.supervisor import DAMAGED, Child, Supervisor, module
from logprobe.collectors.errors import ConfigurationError, HomeBusyError, MissingExtraError
from logprobe.collectors.plain_text import complain
from logprobe.monitor.home import Home

# Of the service: what Arrow's own allocators keep of freed memory cannot be had back, see
# `logprobe.monitor.service.heap`.
SERVICE_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}

# Below those that Linux hands out by itself, to programs that ask for any port and to every connection that leaves this
# machine.
_QUIET_PORTS: Final = range(15_000, 30_000)
_QUIET_TRIES: Final = 20

_ANY = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to


def require_extras(*, app: bool = True) -> None:
    """Raise `MissingExtraError` if a package of the service, or with `app` of the dashboard, is missing."""
    for package in ("duckdb", "apscheduler", *(["streamlit", "plotly"] if app else [])):
        _require(package, "serve", "`logprobe up`")


def _require(package: str, extra: str, need: str) -> None:
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise MissingExtraError(f"{need} needs the package {package!r}; pip install 'logprobe[{extra}]'")


class Stack:
    """The service of a data directory and, unless `app` is False, its dashboard on `port` (0 for any free one).

    `access`: users and addresses that the dashboard admits. `options`: further arguments of the service, see
    `logprobe.app.processes.service`. `nodes`: recording folder on the nodes of the Ray cluster, or None. `also`: other
    data directories whose runs the pages Runs and Compare show.
    """

    def __init__(
        self,
        home: Home,
        *,
        access: Access = Access(),  # noqa: B008 - immutable
        port: int = 8501,
        app: bool = True,
        options: Sequence[str] = (),
        nodes: str | None = None,
        also: Sequence[str] = (),
        shown: str | None = None,
    ) -> None:
        """Prepare the processes. `shown`: run that the announced URL opens.

        Raises `HomeBusyError`, `ConfigurationError` or `MissingExtraError` if the stack could not run.
        """
        require_extras(app=app)
        owner = home.owner()
        if owner is not None:
            raise HomeBusyError(f"{home.path} is in use by {owner}; stop it, or choose another home")
        self._home = home.create()
        self._access = access
        self._port = free_port(access.address, port) if app else 0
        self._app = app
        self._options = options
        self._nodes = nodes
        if nodes is not None:
            _require("ray", "ray", "a Ray cluster")
        self._also = tuple(also)
        self._shown = "" if shown is None else f"/?run={quote(shown, safe='')}"
        self._loggers = logger.load(home)
        if app:
            self._check_sign_in()

    @property
    def url(self) -> str:
        """URL of the dashboard for a browser on this machine."""
        host = "127.0.0.1" if self._access.address in _ANY else self._access.address
        base = f"/{self._access.base_path}" if self._access.base_path else ""
        return f"http://[{host}]:{self._port}{base}" if ":" in host else f"http://{host}:{self._port}{base}"

    @property
    def public_url(self) -> str:
        """URL of the dashboard for other machines."""
        return self._access.public_url or self.url

    def _check_sign_in(self) -> None:
        """Raise `ConfigurationError` for an invalid sign-in before the start."""
        sign_in = load(self._home.path)
        if sign_in is None:
            return
        _require("authlib", "oidc", "sign-in")
        pages = {self.public_url, self.public_url.replace("//127.0.0.1:", "//localhost:")}
        if sign_in.redirect_uri not in {f"{page}/oauth2callback" for page in pages}:
            raise ConfigurationError(
                f"{self._home.path / FILE}: redirect_uri has to be {self.public_url}/oauth2callback, with the "
                "dashboard's "
                "URL as browsers use it (--public-url, --port)"
            )

    def run(self, stop: threading.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Run until `stop` is set. Raises `ChildFailedError` if a process does not start."""

        def announce() -> None:
            complain(
                f"dashboard at {self.url}{self._shown} (Ctrl-C stops)"
                if self._app
                else f"serving {self._home.path} (Ctrl-C stops)"
            )
            if self._app and not self._access.local and not self._access.read_only:
                token.read(self._home)  # made when there is none yet
                complain(f"to act from other machines, enter the token that is in {token.path(self._home)}")
            on_ready()

        children = [
            self._service(),
            *self._landing(),
            *self._pushers(),
            *([self._dashboard()] if self._app else []),
        ]
        Supervisor(children, stop=stop, say=complain, on_ready=announce).run()

    def _service(self) -> Child:
        command = self._program("service", *self._page(), *self._options)
        return Child("monitor service", command, ready=self._serving, environment=SERVICE_ENVIRONMENT, final=DAMAGED)

    def _landing(self) -> list[Child]:
        """Return the landing process of the Ray cluster.

        It is separate from the service, because Ray is third-party code and may crash its process.
        """
        if self._nodes is None:
            return []
        command = self._program("ray_shipping", "--nodes", self._nodes)
        return [Child("landing of the Ray cluster", command, ready=lambda: True, chatty=True)]

    def _pushers(self) -> list[Child]:
        # Ready at once: a target that cannot be reached is tried again, and must not keep the service from running.
        return [
            Child(
                f"logger to {logger.to}",
                self._program("logger", "--number", str(number), *self._page()),
                ready=lambda: True,
            )
            for number, logger in enumerate(self._loggers)
        ]

    def _page(self) -> list[str]:
        """Return the option with the URL for links in messages."""
        return ["--page", self.public_url] if self._app else []

    def _program(self, name: str, *arguments: str) -> list[str]:
        """Return the command of one of our processes on this data directory."""
        return module(f"logprobe.app.processes.{name}", "--home", str(self._home.path), *arguments)

    def _serving(self) -> bool:
        # A killed service leaves its address file behind; the lock tells whose it is.
        info, owner = self._home.service_info(), self._home.owner()
        return info is not None and owner is not None and info.pid == owner.pid

    def _dashboard(self) -> Child:
        options = {
            "server.address": self._access.address,
            "server.port": str(self._port),
            "server.baseUrlPath": self._access.base_path,
            "server.corsAllowedOrigins": self._access.origin or "",
            "server.maxUploadSize": "1",  # MB; nothing is uploaded
            # No other: one in a home directory or a working directory belongs to another app.
            "secrets.files": str(self._home.path / FILE),
            "global.developmentMode": "false",
            **streamlit_options(),
        }
        script = Path(__file__).parent.parent / "dashboard" / "application.py"
        arguments = [f"--{name}={value}" for name, value in options.items()]
        command = module("streamlit", "run", str(script), *arguments)
        access = replace(self._access, also=self._also)
        environment = {"LOGPROBE_HOME": str(self._home.path), **access.environment()}
        return Child("dashboard", command, ready=self._answering, environment=environment, chatty=True)

    def _answering(self) -> bool:
        try:
            with build_opener(ProxyHandler({})).open(f"{self.url}/_stcore/health", timeout=1) as response:
                return bool(response.status == 200)  # noqa: PLR2004 - HTTP's OK
        except (URLError, OSError):
            return False


def free_port(address: str, port: int) -> int:
    """Return `port`, or any free one for 0.

    Raises `ConfigurationError` if the port is taken or the address is not of this machine. Seconds may pass before the
    port is used. For 0, the result is therefore preferably outside the range that the system assigns to other
    processes.
    """
    for quiet in () if port else random.SystemRandom().sample(_QUIET_PORTS, _QUIET_TRIES):
        with suppress(OSError):
            return _bindable(address, quiet)
    try:
        return _bindable(address, port)
    except OSError as error:
        raise ConfigurationError(
            f"port {port} at {address} cannot be used ({error.strerror}); choose another --port"
        ) from error


def _bindable(address: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        return int(probe.getsockname()[1])
