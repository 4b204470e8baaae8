// How severe a run's state is: a shape and a word before a colour.
import { node } from "./dom.js";

export const SIGNS = { critical: "✕", warning: "▲", unknown: "?", ok: "✓" };

export const sign = (severity) => node("span", { class: `lp-sign lp-tone-${severity}`, role: "img", "aria-label": severity, title: severity, text: SIGNS[severity] });
