"""The check command: what authors see before a suite uses their verifier."""

import json

import pytest

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.verifiers.__main__ import main
from tests.unit.gpu_workers.verifiers.judge_server import judge_server, verdict

TESTS = "from solution import square\ndef test(): assert square(3) == 9\n"
GOOD = "def square(n): return n * n\n"


@pytest.fixture
def write(tmp_path):
    def make(**changes):
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / "test_square.py").write_text(TESTS)
        (tmp_path / "good.py").write_text(GOOD)
        values = {
            "verifier": {
                "kind": "tests", "config": {"answer_file": "solution.py"},
                "files": {"tests/test_square.py": "@tests/test_square.py"},
            },
            "reference": "@good.py",
            "cases": [
                {"name": "wrong", "answer": "square = abs", "verdict": "fail", "reason_code": "WRONG_ANSWER"},
                {"answer": "import os; os._exit(0)", "verdict": "fail", "score": 0},
            ],
        } | changes  # fmt: skip
        path = tmp_path / "examples.json"
        path.write_text(json.dumps(values))
        return str(path)

    return make


def test_all_as_expected(write, capsys):
    assert main(["check", write(), "--no-sandbox", "--repeats", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "ok    the reference", "ok    the empty answer", "ok    wrong", "ok    cases[1]",
    ]  # fmt: skip
    assert "pass 1 OK" in lines[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reference": "def square(n): return 0"}, "verdict should be pass, is fail"),
        ({"cases": [{"answer": GOOD, "verdict": "fail"}]}, "verdict should be fail, is pass"),
        (
            {"cases": [{"answer": "x", "verdict": "fail", "reason_code": "NO_OUTPUT"}]},
            "reason_code should be NO_OUTPUT",
        ),
        ({"cases": [{"answer": "x", "verdict": "fail", "score": 0.5}]}, "score should be 0.5, is 0.0"),
        (
            {"verifier": {"kind": "program", "program": "def verify(e): return {'score': 1.0}"}},
            "verdict should be fail",
        ),
        (
            {
                "verifier": {
                    "kind": "program",
                    "program": "import os\ndef verify(e): return {'score': (os.urandom(1)[0] % 250) / 250}",
                }
            },
            "repeats disagree",
        ),
    ],
)
def test_what_is_not_is_said(write, capsys, changes, said):
    assert main(["check", write(**changes), "--no-sandbox"]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verifier": {"kind": "psychic"}}, "psychic"),
        ({"verifier": {"kind": "tests", "files": {}}}, "no file of tests"),
        ({"reference": "@missing.py"}, "missing.py"),
        ({"cases": [{"answer": "x"}]}, "verdict"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(write, capsys, changes, said):
    assert main(["check", write(**changes), "--no-sandbox"]) == 2
    assert said in capsys.readouterr().err


def test_a_judge_is_asked_where_the_environment_says(write, capsys, monkeypatch):
    spec = {"kind": "judge", "config": {"model": "m", "rubric": "r"}}
    path = write(verifier=spec, reference="fine", cases=[])
    monkeypatch.delenv("RATCHET_JUDGE_URL", raising=False)
    assert main(["check", path, "--no-sandbox"]) == 1
    with judge_server(lambda body: verdict(body, 1.0)) as judge:
        monkeypatch.setenv("RATCHET_JUDGE_URL", judge.url)
        assert main(["check", path, "--no-sandbox"]) == 0


def test_every_kind_shows_its_settings(capsys):
    assert main(["kinds"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == set(VerifierKind)
    assert "pass_score" in json.dumps(shown["program"])
