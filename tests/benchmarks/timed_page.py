"""A page of the dashboard that notes when it asked for news, and when its chart showed what."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Browser

# Epoch milliseconds throughout, the clock of this machine, so that they can be held against what Python did. Drawn is what plotly
# holds, seen before the next frame is painted; asked is the last message to the server before that.
_WATCH = """
(() => {
  const now = () => performance.timeOrigin + performance.now();
  const times = (window.lpTimes = { asked: [], drawn: [] });
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (...message) { times.asked.push(now()); return send.apply(this, message); };
  const look = () => {
    const line = document.querySelector(".lp-plot")?._fullData?.find((trace) => trace.name === "backend");
    const step = line && document.querySelector(".lp-plot .trace") ? line.x[line.x.length - 1] : undefined;
    if (step !== undefined && step !== times.drawn.at(-1)?.step) times.drawn.push({ step, at: now(), asked: times.asked.at(-1) });
    requestAnimationFrame(look);
  };
  look();
})();
"""
_DRAWN = "(step) => window.lpTimes.drawn.some((each) => each.step >= step)"
_SECONDS = 120.0


class TimedPage:
    """One session in a browser context of its own: nothing of an earlier visit is there."""

    def __init__(self, browser: Browser, address: str) -> None:
        """Opens `address`; returns before anything is to be seen."""
        self._context = browser.new_context(viewport={"width": 1280, "height": 900})
        self._page = self._context.new_page()
        self._page.set_default_timeout(_SECONDS * 1000)
        self._page.add_init_script(_WATCH)
        self._page.goto(address, wait_until="commit")

    def first_chart(self) -> float:
        """Seconds from asking for the address until a chart was drawn."""
        self._page.wait_for_function(_DRAWN, arg=0)
        opened, drawn = self._page.evaluate("[performance.timeOrigin, window.lpTimes.drawn[0].at]")
        return (drawn - opened) / 1000

    def drawn(self, step: int) -> tuple[float, float]:
        """Waits until `step` is drawn. → when (epoch seconds), and how long after the page had asked (seconds)."""
        self._page.wait_for_function(_DRAWN, arg=step)
        found = self._page.evaluate("(step) => window.lpTimes.drawn.find((each) => each.step >= step)", step)
        return found["at"] / 1000, (found["at"] - found["asked"]) / 1000

    def asked(self) -> int:
        """How often the page has asked for news so far."""
        return int(self._page.evaluate("window.lpTimes.asked.length"))

    def close(self) -> None:
        """Ends the session."""
        self._context.close()


def server_of(address: str) -> int:
    """Process id of the dashboard that serves `address`."""
    wanted = f"--server.port={address.rpartition(':')[2]}".encode()
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        words = found.read_bytes().split(b"\0")
        if wanted in words and b"streamlit" in words and b"logprobe.app.processes.die_with_parent" not in words:
            return int(found.parent.name)
    raise RuntimeError(f"no process serves {address}")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
