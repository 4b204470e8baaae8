"""A file of lines that several processes append to and read on from where they stopped."""

from __future__ import annotations

import threading
from pathlib import Path

from logprobe.collectors.spool.json_lines import JsonLines


def test_whole_lines_come_once_and_what_is_no_document_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines"
    writer, reader = JsonLines(path), JsonLines(path)
    assert reader.read_new() == []
    for number, raw in ((1, b""), (2, b"nonsense\n[1]\n\xff\n"), (3, b'{"n":')):
        writer.append({"n": number})
        with path.open("ab") as file:
            file.write(raw)
        assert reader.read_new() == [{"n": number}]
        assert reader.read_new() == []
    with path.open("ab") as file:  # the rest of a line on its way
        file.write(b" 4}\n")
    assert reader.read_new() == [{"n": 4}]
    assert JsonLines(path).read_new() == [{"n": number} for number in (1, 2, 3, 4)]
    path.unlink()
    writer.append({"n": 5})
    assert reader.read_new() == [{"n": 5}], "a shorter file is another one"


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
