"""The image of docs/examples/Dockerfile, built and used: the service and a shipper inside, a node, a bucket and readers outside. Run by `make campaign NAME=image`.

    IMAGE_BASE     name of the base image; without it, one is made of Debian's packages (by debootstrap, as root), which needs no registry
    DEBIAN_MIRROR  where these packages are; without it, as debootstrap has it
    BUILD_FLAGS    further arguments of `buildah build`, e.g. --volume=/etc/pip.conf:/etc/pip.conf:ro

In a container, buildah may need BUILDAH_ISOLATION=chroot, and without overlay mounts STORAGE_DRIVER=vfs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import psutil
import pytest
from bucket_servers import BUCKET, environment, serving
from processes import SECONDS, eventually, logprobe, record

from logprobe.app.processes.stack import free_port

IMAGE = "localhost/logprobe"
DEBIAN = "localhost/debian-python"
RELEASE = "trixie"  # that the Dockerfile's own base is made of
DATA = "/home/logprobe/data"
USER = 1000


def buildah(*arguments: str | Path) -> str:
    """What it prints."""
    done = subprocess.run(["buildah", *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, f"buildah {shlex.join(map(str, arguments))}: exit code {done.returncode}, see stderr"
    return done.stdout.strip()


def debian() -> str:
    """A base image with Debian's own Python; kept for the next time."""
    if buildah("images", "--quiet", "--filter", f"reference={DEBIAN}"):
        return DEBIAN
    assert shutil.which("debootstrap"), (
        "install debootstrap, or name a base: IMAGE_BASE=docker.io/library/python:3.13-slim"
    )
    container = buildah("from", "scratch")
    try:
        place = Path(buildah("mount", container))
        packages = "--include=ca-certificates,python3,python3-venv"
        mirror = os.environ.get("DEBIAN_MIRROR", "")
        subprocess.run(["debootstrap", "--variant=minbase", packages, RELEASE, place, *mirror.split()], check=True)
        for left in (place / "var/cache/apt/archives", place / "var/lib/apt/lists"):
            shutil.rmtree(left)
        place.chmod(0o755)
        buildah("commit", container, DEBIAN)
    finally:
        buildah("rm", container)
    return DEBIAN


@dataclass
class Container:
    """Of the image; commands share this machine's network, as with `docker run --network host`."""

    name: str
    entry: list[str]

    def command(self, *arguments: str | Path, mounts: Mapping[Path, str]) -> list[str]:
        """The image's entry point with `arguments`."""
        volumes = [f"--volume={here}:{there}" for here, there in mounts.items()]
        return ["buildah", "run", *volumes, self.name, "--", *self.entry, *map(str, arguments)]

    def run(self, *arguments: str | Path, mounts: Mapping[Path, str]) -> str:
        """What the command prints on stdout."""
        return buildah(*self.command(*arguments, mounts=mounts)[1:])


@pytest.fixture(scope="module")
def config(repository: Path) -> dict[str, Any]:
    """Of the image, once it is built."""
    given = os.environ.get("IMAGE_BASE")
    base = ["--build-arg", f"BASE={given}"] if given else ["--build-arg", f"BASE={debian()}", "--pull-never"]
    flags = shlex.split(os.environ.get("BUILD_FLAGS", ""))
    before = buildah("images", "--quiet", "--filter", f"reference={IMAGE}")
    print(
        buildah("build", *base, *flags, "--file", repository / "docs/examples/Dockerfile", "--tag", IMAGE, repository)
    )
    if before and before != buildah("images", "--quiet", "--filter", f"reference={IMAGE}"):
        buildah("rmi", before)
    return dict(json.loads(buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"])


@contextmanager
def container(config: dict[str, Any]) -> Iterator[Container]:
    """For one command at a time."""
    name = buildah("from", "--pull-never", IMAGE)
    try:
        buildah("config", "--volume", f"{DATA}-", name)  # buildah 1.28 may prefer an empty one of its own to --volume
        yield Container(name, config["Entrypoint"])
    finally:
        buildah("rm", name)


def test_what_the_image_says_of_itself(config: dict[str, Any]) -> None:
    assert (config["User"], config["Entrypoint"]) == ("logprobe", ["logprobe"])
    assert f"LOGPROBE_HOME={DATA}" in config["Env"]
    assert list(config["Volumes"]) == [DATA]
    assert set(config["ExposedPorts"]) == {"8501/tcp"}
    with container(config) as made:
        assert made.run("--version", mounts={}).split()[-1] == version("logprobe")
        found = buildah("run", made.name, "--", "sh", "-c", f"id -u; stat -c '%u %g %a' {DATA}; ls /source 2>&1; true")
    assert found.splitlines()[:2] == [str(USER), f"{USER} {USER} 700"]
    assert "cannot access" in found, "the source is not left in it"


def test_nodes_inside_and_outside_reach_the_service_inside(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, outside, inside = (tmp_path / name for name in ("data", "outside", "inside"))
    data.mkdir(mode=0o700)
    own(data)
    address = f"s3://{BUCKET}/team"
    pages = free_port("0.0.0.0", 0)
    with (
        serving(tmp_path / "server") as server,
        container(config) as up,
        container(config) as shipping,
        container(config) as asking,
    ):
        variables = environment(server.port)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
            for each in (up, shipping):
                buildah("config", "--env", f"{name}={value}", each.name)
        buildah("config", "--env", f"XDG_STATE_HOME={DATA}", shipping.name)
        home = {data: DATA}
        process = subprocess.Popen(up.command(*config["Cmd"], "--bucket", address, "--port", str(pages), mounts=home))
        try:
            eventually(lambda: process.poll() is not None or _answers(pages), "the dashboard answers")
            assert process.poll() is None
            for state, run, owner in ((outside, "outside", os.geteuid()), (inside, "inside", USER)):
                record(tmp_path / run / "home", run)
                waits = state / f"logprobe-{owner}" / quote(address, safe="")
                shutil.copytree(tmp_path / run / "home" / "spool", waits / "spool")
                waits.parent.chmod(0o700)
            monkeypatch.setenv("XDG_STATE_HOME", str(outside))
            logprobe("ship", "--home", address)
            own(inside)
            shipping.run("ship", "--home", address, mounts={inside: DATA})
            assert not [*outside.rglob("*.arrow"), *inside.rglob("*.arrow")]

            def listed() -> set[tuple[str, int]]:
                rows = json.loads(asking.run("runs", "--json", mounts=home))
                return {(row["run"], row["steps"]) for row in rows}

            eventually(lambda: listed() == {("outside", 3), ("inside", 3)}, "both runs are listed")
            _inside(pages).terminate()
            assert process.wait(SECONDS) == 0
        finally:
            for each in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
                each.kill()
            process.wait()
    assert {path.stat().st_uid for path in data.rglob("*")} == {USER}


def own(place: Path) -> None:
    """Gives a folder to the image's user."""
    for each in (place, *place.rglob("*")):
        os.chown(each, USER, USER)


def _inside(port: int) -> psutil.Process:
    """The entry point itself, with the dashboard on `port`: buildah passes no signals on."""
    started = [each for each in psutil.process_iter(["cmdline"]) if str(port) in (each.info["cmdline"] or ())]
    (found,) = [each for each in started if Path(each.info["cmdline"][0]).name.startswith("python")]
    return found


def _answers(port: int) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
