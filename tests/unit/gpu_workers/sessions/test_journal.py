import subprocess
import sys
from pathlib import Path

import pytest

from gpu_workers.sessions.journal import Journal, JournalError


def test_records_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "s")
    journal.append("a", b"one", new=True)
    journal.append("b", b"else", new=True)
    journal.append("a", b"")
    journal.append("a", b"x" * 100_000)
    journal.close()
    again = Journal(tmp_path / "s")
    assert sorted(again.names()) == ["a", "b"]
    assert again.read("a") == [b"one", b"", b"x" * 100_000]
    again.delete("a")
    again.delete("a")
    with pytest.raises(FileNotFoundError):
        again.read("a")
    with pytest.raises(JournalError):
        again.append("a", b"after")
    again.close()


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_end_is_cut_off_and_written_over(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    journal.append("a", b"first", new=True)
    journal.append("a", b"abc")
    file = tmp_path / "a.session"
    file.write_bytes(file.read_bytes()[:-cut])
    assert journal.read("a") == [b"first"]
    journal.append("a", b"next")
    assert journal.read("a") == [b"first", b"next"]
    journal.close()


def test_a_changed_byte_ends_what_is_believed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append("a", b"first", new=True)
    journal.append("a", b"second")
    journal.append("a", b"third")
    file = tmp_path / "a.session"
    data = bytearray(file.read_bytes())
    data[8 + 5 + 8] ^= 1
    file.write_bytes(data)
    assert journal.read("a") == [b"first"]
    journal.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = "import sys, pathlib; from gpu_workers.sessions import journal; journal.Journal(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(__file__).resolve().parents[4]
    journal = Journal(tmp_path)
    refused = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert refused.returncode
    assert "in use by another process" in refused.stderr
    journal.close()
    assert subprocess.run(command, cwd=root, check=False).returncode == 0


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be used"):
        Journal(tmp_path / "file")
