"""`logprobe mcp` over stdio, as the SDK's own client sees it, on a home with a running service."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from processes import end, eventually
from recorded_home import SAMPLE_DATA, ingest_recorded

from logprobe.app.dashboard.access import token
from logprobe.app.mcp_server import NOTICE
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect

RUN = "v1-initial"
HOSTILE = "odd\x1b[2J\u202e"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a service: two recorded beginnings, one of them ill, and a run that records hostile text."""
    home = tmp_path_factory.mktemp("mcp") / "home"
    ingest_recorded(home, RUN, "v0-reference", before_step=12)
    with Recorder(home, "hostile", component="test") as recorder:
        recorder.training(
            step=1, sample_ids=[HOSTILE], token_ids=[[1, 2]], rollout_logprobs=[[-1.0, -2.0]], trainer_logprobs=[[-1.5, -2.0]]
        )  # fmt: skip
    command = [sys.executable, "-m", "logprobe.app.cli", "up", "--no-app", "--home", str(home)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        eventually(lambda: diagnosed(home) >= {RUN, "v0-reference", "hostile"}, "all runs to be diagnosed")
        yield home
    finally:
        end(process)


def diagnosed(home: Path) -> set[str]:
    try:
        with connect(Home(home)) as reader:
            return {row["run"] for row in reader.query("SELECT run FROM diagnoses").to_pylist()}
    except LogprobeError:
        return set()


def asked(home: Path, what: Callable[[Client], Awaitable[Any]], *more: str, **environment: str) -> Any:
    """What a client comes to, with a server of its own."""
    variables = {**os.environ, **environment}
    arguments = ["-m", "logprobe.app.cli", "mcp", "--home", str(home), *more]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=variables)

    async def session() -> Any:
        async with Client(stdio_client(parameters)) as client:
            return await what(client)

    return asyncio.run(session())


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The data of an answer, which is marked as such; or the text of an error."""
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    if result.is_error:
        return text
    answer = json.loads(text)
    assert answer["notice"] == NOTICE
    assert set(answer) == {"notice", "data"}
    return answer["data"]


def test_an_agent_reads_everything_and_can_change_nothing(served: Path) -> None:
    async def look(client: Client) -> dict[str, Any]:
        tools = (await client.list_tools()).tools
        return {
            "tools": {tool.name: tool.annotations.read_only_hint for tool in tools},
            "runs": await call(client, "runs"),
            "status": await call(client, "status", run=RUN),
            "diagnosis": await call(client, "diagnosis", run=RUN),
            "tokens": await call(client, "worst_tokens", run=RUN, count=3),
            "compare": await call(client, "compare", run=RUN, baseline="v0-reference"),
            "sql": await call(client, "sql", query="SELECT run, count(*) AS steps FROM steps GROUP BY run ORDER BY run"),
            "many": await call(client, "sql", query="SELECT * FROM range(1000)"),
            "hostile": await call(client, "worst_tokens", run="hostile"),
            "write": await call(client, "sql", query="DELETE FROM diagnoses"),
            "file": await call(client, "sql", query="SELECT * FROM read_text('/etc/hostname')"),
            "nobody": await call(client, "status", run="nobody\x1b[2J"),
            **{
                f"elsewhere: {side} {name}": await call(client, "compare", **{side: name, other: RUN})
                for name in ("grpc://127.0.0.1:1/x", str(SAMPLE_DATA / "late-growth-bf16"), f"{served}:v0-reference")
                for side, other in (("run", "baseline"), ("baseline", "run"))
            },
            "act": await call(client, "acknowledge", episode=RUN, reason="x"),
        }  # fmt: skip

    found = asked(served, look)
    assert found["tools"] == dict.fromkeys(("runs", "status", "diagnosis", "worst_tokens", "compare", "sql"), True)
    assert found["runs"][0]["run"] == RUN
    assert found["runs"][0]["severity"] == found["status"]["judgement"]["severity"] == "critical"
    assert found["diagnosis"]["verdict"] == "critical"
    assert found["diagnosis"]["findings"][0]["fix"]
    assert len(found["tokens"]["worst"]) == 3
    assert found["tokens"]["worst"][0]["k3"] >= found["tokens"]["worst"][1]["k3"] > 0
    assert found["compare"]["runs"][0]["run"] == RUN
    assert found["sql"]["rows"] == [["hostile", 1], ["v0-reference", 12], [RUN, 12]]
    assert (len(found["many"]["rows"]), found["many"]["of_rows"]) == (200, 1000)
    assert found["hostile"]["sample_id"] == "odd\ufffd[2J\ufffd"
    refusals = [answer for name, answer in found.items() if name.startswith("elsewhere")]
    assert len(refusals) == 6
    for answer in refusals:
        assert re.match("Error executing tool compare: no run '(grpc:|/)", answer)
    for refused in ("write", "file", "nobody", "act"):
        assert isinstance(found[refused], str), refused
        assert "\x1b" not in found[refused]
    assert diagnosed(served) >= {RUN}


def test_acting_needs_the_flag_and_the_token(served: Path) -> None:
    async def act(client: Client) -> Any:
        return await call(client, "correction_mode", run=RUN, mode="suggest")

    command = [sys.executable, "-m", "logprobe.app.cli", "mcp", "--act", "--home", str(served)]
    (wrong := served.parent / "wrong").write_text("wrong\n")
    wrong.chmod(0o600)
    for given, variables in (([], {}), (["--token", str(wrong)], {}), ([], {"LOGPROBE_MCP_TOKEN": "wrong"})):
        done = subprocess.run(
            [*command, *given],
            env={**os.environ, **variables},
            input="",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, "`logprobe token` shows" in done.stderr) == (1, True)
    wrong.chmod(0o644)
    done = subprocess.run([*command, "--token", str(wrong)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "others may read it" in done.stderr) == (1, True)
    former = {"LOGPROBE_MCP_TOKEN": token.read(Home(served))}  # of the release before
    assert asked(served, act, "--act", **former)["run"] == RUN
    done = asked(served, act, "--act", "--token", str(token.path(Home(served))))
    assert done["run"] == RUN
