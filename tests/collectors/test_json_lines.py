"""A file of lines that several processes append to and read on from where they stopped."""

from __future__ import annotations

import threading
from pathlib import Path

from logprobe.collectors.spool.json_lines import JsonLines


def test_lines_come_back_once(tmp_path: Path) -> None:
    writer, reader = JsonLines(tmp_path / "new" / "lines"), JsonLines(tmp_path / "new" / "lines")
    assert reader.read_new() == []
    writer.append({"n": 1})
    assert reader.read_new() == [{"n": 1}]
    writer.append({"n": 2})
    assert reader.read_new() == [{"n": 2}]
    assert reader.read_new() == []
    assert JsonLines(writer.path).read_new() == [{"n": 1}, {"n": 2}]


def test_a_line_on_its_way_is_read_when_it_is_whole(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "lines")
    lines.append({"n": 1})
    with lines.path.open("ab") as file:
        file.write(b'{"n":')
    assert lines.read_new() == [{"n": 1}]
    with lines.path.open("ab") as file:
        file.write(b" 2}\n")
    assert lines.read_new() == [{"n": 2}]


def test_lines_that_are_no_documents_are_passed_over(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "lines")
    lines.append({"n": 1})
    with lines.path.open("ab") as file:
        file.write(b"nonsense\n[1]\n\xff\n")
    lines.append({"n": 2})
    assert lines.read_new() == [{"n": 1}, {"n": 2}]


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "lines")
    lines.append({"name": "a long one"})
    lines.read_new()
    lines.path.unlink()
    lines.append({"n": 2})
    assert lines.read_new() == [{"n": 2}]


def test_many_writers(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    threads = [
        threading.Thread(target=lambda n=n: [JsonLines(path).append({"of": n, "n": i}) for i in range(50)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = JsonLines(path).read_new()
    assert len(found) == 400
    assert {(line["of"], line["n"]) for line in found} == {(n, i) for n in range(8) for i in range(50)}
