"""How long the Tokens page takes to open a long sequence: real service, real browser, tokens from the real `Recorder`.

From the click, or the address, to the painted strip. The baseline is a sequence of a dozen tokens on the same page and the same
home, so the ratio is what 32,768 tokens add.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from figure import Figure
from playwright.sync_api import Browser, Page, sync_playwright
from recorded_home import take_in

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))
from dashboard_process import chromium, dashboard

RUNS = {"long": 32_768, "short": 12}  # tokens a sequence
STEPS, SEQUENCES = 4, 8  # 1 M tokens of long sequences: reading all of a step would show
ROUNDS = 5
TARGET_S = 1.5
SETTLE_MS = 60_000
# When the strip was painted with this sequence, by the page's own clock: asking from here would add what asking costs.
WATCH = """(sample) => new Promise((resolve) => {
  const started = performance.now();
  const look = () => {
    const chosen = document.querySelector('.lp-tk-sequence[aria-selected=true] .lp-name');
    const strip = document.querySelector('.lp-tk-strip');
    if (chosen?.textContent === sample && strip?.dataset.sample === sample) resolve((performance.now() - started) / 1000);
    else requestAnimationFrame(look);
  };
  [...document.querySelectorAll('.lp-tk-sequence')].find((each) => each.querySelector('.lp-name').textContent === sample).click();
  look();
})"""


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        for run, length in RUNS.items():
            record(home, run, length)
        ingest(home)
        with dashboard("up", "--home", str(home), "--port", "0") as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            clicked = {run: by_click(browser, address, run) for run in RUNS}
            opened = {run: by_address(browser, address, run) for run in RUNS}
    return figures(clicked, opened)


def figures(clicked: dict[str, float], opened: dict[str, float]) -> list[Figure]:
    """Medians of both ways to a sequence."""
    note = f"median of {ROUNDS}; {RUNS['long']:,} tokens against {RUNS['short']}, squares on a canvas"
    met = clicked["long"] <= TARGET_S
    return [
        Figure("tokens: sequence by click", clicked["long"], "s", "≤ 1.5 s", met, "short sequence", clicked["short"], note),
        Figure(
            "tokens: sequence by address", opened["long"], "s", "", None, "short sequence", opened["short"],
            f"{note}; the browser starts with nothing: page, modules and session are part of it",
        ),
    ]  # fmt: skip


def by_click(browser: Browser, address: str, run: str) -> float:
    """Seconds from choosing a sequence in the list until its strip is painted; each one for the first time."""
    page = browser.new_page()
    open_page(page, f"{address}/?page=tokens&run={run}&step=1&sequence=1/0")
    samples = [f"1/{number}" for number in range(1, 1 + ROUNDS)]
    seconds = [float(page.evaluate(WATCH, sample)) for sample in samples]
    page.close()
    return statistics.median(seconds)


def by_address(browser: Browser, address: str, run: str) -> float:
    """Seconds from opening a link until the strip is painted, in a session of its own."""
    seconds = []
    for number in range(ROUNDS):
        context = browser.new_context()
        started = time.perf_counter()
        open_page(context.new_page(), f"{address}/?page=tokens&run={run}&step=2&sequence=2/{number}")
        seconds.append(time.perf_counter() - started)
        context.close()
    return statistics.median(seconds)


def open_page(page: Page, address: str) -> None:
    """Opens a link and waits until its strip is painted."""
    page.goto(address)
    page.wait_for_selector(".lp-tk-strip[data-sample]", timeout=SETTLE_MS)


def record(home: Path, run: str, length: int) -> None:
    """Steps of sequences of `length` tokens, with everything that a token can have."""
    rng = np.random.default_rng(length)
    shape = (SEQUENCES, length)
    with Recorder(home, run) as recorder:
        for step in range(STEPS):
            samples = [f"{step}/{number}" for number in range(SEQUENCES)]
            tokens = rng.integers(0, 150_000, shape)
            rollout = -rng.exponential(1.0, shape)
            trainer = np.minimum(rollout + 0.05 * rng.normal(size=shape), -1e-9)
            _record_step(recorder, step, samples, [tokens, rollout, trainer], rng.exponential(1.0, shape))


def _record_step(
    recorder: Recorder, step: int, samples: Sequence[str], arrays: Sequence[np.ndarray], entropy: np.ndarray
) -> None:
    tokens, rollout, trainer = arrays
    lengths = [tokens.shape[1]] * len(samples)
    accepted = recorder.rollout(
        sample_ids=samples, token_ids=tokens, logprobs=rollout.astype(np.float32), lengths=lengths, weight_version=str(step)
    ) and recorder.training(
        step=step, sample_ids=samples, token_ids=tokens, trainer_logprobs=trainer.astype(np.float32), mask=np.ones(tokens.shape, bool),
        current_logprobs=np.minimum(trainer + 0.002, -1e-9).astype(np.float32), entropy=entropy.astype(np.float32),
        advantages=np.linspace(-1, 1, len(samples)), weight_version=str(step),
    )  # fmt: skip
    if not (accepted and recorder.flush()):
        raise RuntimeError(f"step {step} was not recorded")


def ingest(home: Path) -> None:
    """Everything recorded, in the store."""
    with Store.open(Home(home)) as store:
        take_in(store)


if __name__ == "__main__":
    for figure in measure():
        print(
            f"{figure.name}: {figure.value:.2f} {figure.unit}, {figure.baseline} {figure.baseline_value:.2f}, met {figure.met}"
        )
