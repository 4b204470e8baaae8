// Full screen: of the page only the bar, the verdict and the charts, which then fill the window. It is in the address, so that a link opens
// it on a screen at the wall; the browser's own full screen needs a click, and goes along with it where there was one.
import { fill } from "./chart_state.js";

const CLASS = "lp-full";
let entered = false; // the browser's own full screen, since the last toggle

export function toggle(view) {
  const full = !view.state?.full;
  entered = false; // an event of what was before may still come
  if (full) document.documentElement.requestFullscreen?.().then(() => { entered = true; }, () => {}); // where that is not allowed the window is filled
  else if (document.fullscreenElement) document.exitFullscreen();
  fill(full);
}

// The reader left the browser's full screen by its own means.
export function left() {
  if (entered && !document.fullscreenElement) fill(false);
}

// Shows the page as it is asked for; → the height of the figure, `least` at least.
export function fitted(view, least) {
  document.body.classList.toggle(CLASS, view.state.full);
  if (!view.state.full) return least;
  const scrolled = view.frame.closest("[data-testid=stMain]")?.scrollTop ?? 0;
  return Math.max(least, Math.floor(innerHeight - view.frame.getBoundingClientRect().top - scrolled - 40));
}

export const close = () => document.body.classList.remove(CLASS);
