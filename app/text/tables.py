"""Query results as text: aligned columns for a terminal, JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TextIO

import pyarrow as pa

from logprobe.collectors.plain_text import harmless
from logprobe.monitor.plain_text import csv_cell

_WIDEST: Final = 60  # characters of a cell; longer ones are cut, JSON and CSV never are
_GAP: Final = 2  # blanks between columns
_NARROWEST: Final = 32  # of a column of texts that has to give way; shorter words are not cut
_UNKNOWN: Final = "–"  # unknown is not zero, and looks it


def cell(value: Any, widest: int = _WIDEST) -> str:
    """Return one value as text for users, with at most `widest` characters."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _UNKNOWN
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    text = harmless(str(value))
    return text if len(text) <= widest else text[: widest - 1] + "…"


_MAY_HARM: Final = re.compile("[\x7f-\x9f\u0600-\u206f\ud800-\udfff]")  # what JSON itself escapes is not among them


def fact(value: Any) -> str:
    """Return a value for a separate line, with full text and all other values as in a table."""
    return harmless(value) if isinstance(value, str) else cell(value)


def fitted(header: Sequence[str], rows: Sequence[Sequence[Any]], *, widest: int = sys.maxsize) -> str:
    """Return a table that fits the terminal. Long texts are wrapped, and those over `widest` characters are cut.

    Numbers are never cut, so a table with many numbers may be wider.
    """
    header = [harmless(name) for name in header]
    body = [[cell(value, widest) for value in row] for row in rows]
    right = [_numeric([row[i] for row in rows]) for i in range(len(header))]
    space = shutil.get_terminal_size().columns - _GAP * (len(header) - 1)
    widths = _widths([[_breakable(name), *(row[i] for row in body)] for i, name in enumerate(header)], right, space)
    wrapped = [[_wrapped(text, size) for text, size in zip(line, widths, strict=True)] for line in [header, *body]]
    lines = [line for row in wrapped for line in _lines(row, widths, right)]
    return "\n".join([*lines[: (first := max(map(len, wrapped[0])))], _rule(widths), *lines[first:]])


def _rule(widths: Sequence[int]) -> str:
    return (" " * _GAP).join("─" * width for width in widths)


def _widths(columns: Sequence[Sequence[str]], numeric: Sequence[bool], space: int) -> list[int]:
    """Return the width of each column: the width of its longest cell, reduced to fit. Columns of numbers are not
    reduced.
    """
    widths, floor = [], []
    for (name, *cells), number in zip(columns, numeric, strict=True):
        longest, part = max(map(len, cells), default=0), max(map(len, name.split()), default=1)
        widths.append(max(longest, len(name.replace(" ", ""))))
        word = max((len(word) for cell in cells for word in cell.split()), default=0)
        floor.append(max(part, longest if number else min(word, _NARROWEST)))
    while sum(widths) > space and any(width > low for width, low in zip(widths, floor, strict=True)):
        widths[max(range(len(widths)), key=lambda i: widths[i] - floor[i])] -= 1
    return widths


def _breakable(name: str) -> str:
    """Return the name of a column with blanks after dots and underscores, where a line may break."""
    return re.sub(r"(?<=[._])(?=\w)", " ", name)


def _wrapped(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    if " " in text:
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    return [line.replace(" ", "") for line in textwrap.wrap(_breakable(text), width, break_on_hyphens=False)]


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    for number in range(max(map(len, cells))):
        parts = [
            (cell[number] if number < len(cell) else "").rjust(width)
            if side
            else (cell[number] if number < len(cell) else "").ljust(width)
            for cell, width, side in zip(cells, widths, right, strict=True)
        ]
        yield (" " * _GAP).join(parts).rstrip()


def paragraph(text: str, *, first: str = "", then: str | None = None) -> str:
    """Return a text in lines that fit the terminal. `first`: prefix of the first line. `then`: prefix of the others."""
    indent = " " * len(first) if then is None else then
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(harmless(text), width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines) or first.rstrip()


def _numeric(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in present
    )


def rows_of(table: pa.Table) -> list[list[Any]]:
    """Return the rows of `table` as Python values, with the columns in order. Names of columns may repeat."""
    columns = [column.to_pylist(maps_as_pydicts="lossy") for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def write_table(table: pa.Table, out: TextIO) -> None:
    """Write a table as text. Long cells are cut."""
    out.write(fitted(table.column_names, rows_of(table), widest=_WIDEST) + "\n")


def write_csv(table: pa.Table, out: TextIO) -> None:
    """Write CSV (RFC 4180) with a header line. Nested values are JSON and unknown ones empty. Texts are safe
    (`csv_cell`).
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in table.column_names])
    for row in rows_of(table):
        cells = ["" if value is None else _csv(plain(value)) for value in row]
        writer.writerow([csv_cell(cell) if isinstance(cell, str) else cell for cell in cells])


def _csv(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def write_json(table: pa.Table, out: TextIO) -> None:
    """Return a JSON array with one object per row and one row per line."""
    out.write(dump_lines(dict(zip(table.column_names, row, strict=True)) for row in rows_of(table)) + "\n")


def show(document: Any, words: Callable[[], str | Iterable[str]], *, as_json: bool) -> None:
    """Write a document as JSON, or as the text or the lines that `words` returns. In lines, control characters are
    replaced.
    """
    if as_json:
        sys.stdout.write(f"{dump(document)}\n")
    else:
        text = words()
        sys.stdout.write(text if isinstance(text, str) else "".join(f"{harmless(line)}\n" for line in text))


def dump_lines(documents: Iterable[Any]) -> str:
    """Return a JSON array with one document per line."""
    return "[" + ",\n ".join(map(dump, documents)) + "]"


def dump_rows(head: Mapping[str, Any], name: str, rows: Iterable[Any]) -> str:
    """Return a JSON document of `head` and, under the last key `name`, of `rows` with one row per line."""
    facts = "".join(f"{dump(key)}: {dump(value)}, " for key, value in head.items())
    return f'{{{facts}"{name}": [\n' + ",\n".join(map(dump, rows)) + "\n]}\n"


def dump(document: Any) -> str:
    """Return JSON with times as ISO 8601 and control characters escaped. NaN and infinities become null."""
    return _MAY_HARM.sub(_escaped, json.dumps(plain(document), ensure_ascii=False, allow_nan=False))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return character if harmless(character) == character else f"\\u{ord(character):04x}"


def plain(value: Any) -> Any:
    """Return `value` with the types of JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return _PLAIN.get(type(value), str)(value)


def _number(value: Decimal) -> int | float:
    """Return a decimal as an integer if it has no fraction, or else as a float. DuckDB sums integers as decimals."""
    return int(value) if value == value.to_integral_value() else float(value)


_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    Decimal: _number,
    datetime: datetime.isoformat,
    date: date.isoformat,
    timedelta: timedelta.total_seconds,
    bytes: bytes.hex,
}
