"""The processes of one home: the monitor service and the dashboard, as `logprobe up` and `logprobe demo` run them."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from logprobe.app.dashboard.theme import streamlit_options
from logprobe.app.supervisor import Child, Supervisor
from logprobe.collectors.errors import ConfigurationError, HomeBusyError, MissingExtraError
from logprobe.monitor.home import Home

_ANY = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to


def say(line: str) -> None:
    """One line for the person at the terminal; stdout is for results."""
    print(f"logprobe: {line}", file=sys.stderr, flush=True)


def require_extras(*, app: bool = True) -> None:
    """Raises `MissingExtraError` when the service, or with `app` the dashboard, could not run here."""
    for package in ("duckdb", "apscheduler", *(["streamlit", "plotly"] if app else [])):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise MissingExtraError(f"the package {package!r} is not installed; pip install 'logprobe[serve]'")


class Stack:
    """A home's service and, unless `app` is False, its dashboard at `address`:`port` (0: any free port).

    `options`: further arguments of the service, see `logprobe.app.service`.
    """

    def __init__(
        self,
        home: Home,
        *,
        address: str = "127.0.0.1",
        port: int = 8501,
        app: bool = True,
        options: Sequence[str] = (),
    ) -> None:
        """Raises `HomeBusyError`, `ConfigurationError` or `MissingExtraError` at once when it could not run."""
        require_extras(app=app)
        owner = home.owner()
        if owner is not None:
            raise HomeBusyError(f"{home.path} is in use by {owner}; stop it, or choose another home")
        self._home = home.create()
        self._address = address
        self._port = free_port(address, port) if app else 0
        self._app = app
        self._options = options

    @property
    def url(self) -> str:
        """Where a browser finds the dashboard."""
        host = "127.0.0.1" if self._address in _ANY else self._address
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    def run(self, stop: threading.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Runs until `stop` is set. Raises `ChildFailedError` when a process does not come up."""

        def announce() -> None:
            say(f"dashboard at {self.url} (Ctrl-C stops)" if self._app else f"serving {self._home.path} (Ctrl-C stops)")
            on_ready()

        children = [self._service(), *([self._dashboard()] if self._app else [])]
        Supervisor(children, stop=stop, say=say, on_ready=announce).run()

    def _service(self) -> Child:
        page = ["--page", self.url] if self._app else []
        command = [sys.executable, "-m", "logprobe.app.service", "--home", str(self._home.path), *page, *self._options]
        return Child("monitor service", command, ready=self._serving)

    def _serving(self) -> bool:
        # A killed service leaves its address file behind; the lock tells whose it is.
        info, owner = self._home.service_info(), self._home.owner()
        return info is not None and owner is not None and info.pid == owner.pid

    def _dashboard(self) -> Child:
        options = {
            "server.address": self._address,
            "server.port": str(self._port),
            "global.developmentMode": "false",
            **streamlit_options(),
        }
        script = Path(__file__).parent / "dashboard" / "application.py"
        arguments = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "streamlit", "run", str(script), *arguments]
        environment = {"LOGPROBE_HOME": str(self._home.path)}
        return Child("dashboard", command, ready=self._answering, environment=environment, chatty=True)

    def _answering(self) -> bool:
        try:
            with build_opener(ProxyHandler({})).open(f"{self.url}/_stcore/health", timeout=1) as response:
                return bool(response.status == 200)  # noqa: PLR2004 - HTTP's OK
        except (URLError, OSError):
            return False


def free_port(address: str, port: int) -> int:
    """`port` itself, or any free one for 0. Raises `ConfigurationError` when it is taken or the address is not ours."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} at {address} cannot be used ({error.strerror}); choose another --port"
            ) from error
        return int(probe.getsockname()[1])
