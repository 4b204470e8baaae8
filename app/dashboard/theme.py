"""Colours of the dashboard, light and dark, and the settings of Streamlit.

Series colours follow Okabe and Ito's palette, which is safe for common kinds of colour blindness. Each pair also has a
distinct dash, so colour never carries the meaning alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["light", "dark"]


@dataclass(frozen=True)
class Theme:
    """Colours as CSS hex strings."""

    mode: Mode
    text: str
    muted: str
    line: str  # hairlines: grid, borders
    page: str
    surface: str  # what lies on the page: tiles, menus
    accent: str
    backend: str
    update: str
    total: str
    reference: str
    neutral: str
    alarm: str  # where trouble began
    runs: tuple[str, ...]  # runs side by side, the first one first

    def color(self, role: str) -> str:
        """Return the colour of the role of a series. Roles that are not pairs (`backend`, …) have a neutral colour."""
        pairs = {"backend": self.backend, "update": self.update, "total": self.total, "reference": self.reference}
        return pairs.get(role, self.neutral)


LIGHT: Final = Theme(
    mode="light",
    text="#1b2129",
    muted="#5c6773",
    line="#e3e7ec",
    page="#ffffff",
    surface="#f7f8fa",
    accent="#0072b2",
    backend="#0072b2",
    update="#d55e00",
    total="#a0508a",
    reference="#007a5a",
    neutral="#475463",
    alarm="#b3261e",
    runs=("#0072b2", "#d55e00", "#007a5a", "#a0508a", "#8a6d00", "#475463"),
)

DARK: Final = Theme(
    mode="dark",
    text="#e6eaef",
    muted="#93a0ae",
    line="#262d36",
    page="#101418",
    surface="#171c22",
    accent="#56b4e9",
    backend="#56b4e9",
    update="#e69f00",
    total="#cc79a7",
    reference="#2fc39a",
    neutral="#b4c0cc",
    alarm="#ff8a80",
    runs=("#56b4e9", "#e69f00", "#2fc39a", "#cc79a7", "#f0e442", "#b4c0cc"),
)

DASHES: Final = {"backend": "solid", "update": "dot", "total": "dash", "reference": "dashdot", "teacher": "longdash"}


def theme_for(mode: str | None) -> Theme:
    """Return the theme that the browser requests, by default the light one."""
    return DARK if mode == "dark" else LIGHT


def colors_of(theme: Theme) -> str:
    """Return the colours as a rule of a style sheet, by the names that Streamlit uses within components."""
    names = {
        "text-color": theme.text,
        "background-color": theme.page,
        "secondary-background-color": theme.surface,
        "border-color": theme.line,
        "primary-color": theme.accent,
    }
    return f":root {{ {'; '.join(f'--st-{name}: {color}' for name, color in names.items())} }}"


def streamlit_options() -> dict[str, str]:
    """Return options of ``streamlit run``, which set our theme and disable external connections.

    The supervisor sets address and port.
    """
    options: dict[str, str] = {
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.enableXsrfProtection": "true",
        "browser.gatherUsageStats": "false",
        # With an address like 0.0.0.0 it asks a public server which one this machine has.
        "logger.hideWelcomeMessage": "true",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": "false",
        # A message that did not change is sent as a reference to what the browser keeps. It says what it keeps when it
        # asks, and may drop it before the answer comes, after so many runs without it: with Streamlit's 2, going to a
        # page and back was enough.
        "global.maxCachedMessageAge": "16",
        "theme.baseFontSize": "14",
        "theme.baseRadius": "6px",
    }
    for theme in (LIGHT, DARK):
        prefix = f"theme.{theme.mode}"
        options |= {
            f"{prefix}.primaryColor": theme.accent,
            f"{prefix}.backgroundColor": theme.page,
            f"{prefix}.secondaryBackgroundColor": theme.surface,
            f"{prefix}.textColor": theme.text,
            f"{prefix}.borderColor": theme.line,
        }
    return options
