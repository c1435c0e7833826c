"""The command line without a server: errors of usage, and what a dry run shows."""

import json
import sys

import msgspec
import pytest

from gpu_workers.contracts.runspec import parse_run_spec
from ratchet_client.commands.main import main
from ratchet_client.commands.output import Output
from ratchet_client.commands.spec_view import spec_fields
from ratchet_client.errors import NotFound, RatchetError, SpecError


@pytest.fixture
def ratchet(monkeypatch, capsys):
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ratchet", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("bogus", "--json"), "No such command 'bogus'", "ratchet --help"),
        (("--json", "bogus"), "No such command 'bogus'", "ratchet --help"),
        (("runs", "list", "--bogus", "--json"), "No such option '--bogus'", "ratchet runs list --help"),
        (("--json", "runs", "list", "--limit", "0"), "Invalid value for '--limit'", "ratchet runs list --help"),
        (("runs", "--json", "show"), "Missing argument 'RUN'", "ratchet runs show --help"),
        (("--json", "runs"), "Missing command", "ratchet runs --help"),
    ],
)
def test_a_wrong_command_line_is_an_error_in_json(ratchet, words, said, hint):
    code, out, _ = ratchet(*words)
    error = json.loads(out)["error"]
    assert code == 3 and said in error["message"]
    assert (error["code"], error["status"], error["errors"], error["hint"]) == ("usage", None, [], hint)


def test_without_json_a_wrong_command_line_shows_the_usage(ratchet):
    code, out, err = ratchet("runs", "list", "--bogus")
    assert (code, out) == (3, "") and "Usage: ratchet runs list" in err and "--bogus" in err


def test_help_says_that_nouns_may_be_in_the_singular(ratchet):
    code, out, _ = ratchet("--help")
    assert code == 0 and "`ratchet gate show` is `ratchet gates show`" in out
    assert (
        ratchet("gate", "show", "--help")[1].splitlines()[1:] == ratchet("gates", "show", "--help")[1].splitlines()[1:]
    )


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (RatchetError("x"), "client_error", None),
        (NotFound("x"), "not_found", 404),
        (SpecError("x"), "spec_unreadable", None),
    ],
)
def test_every_error_has_code_and_status(capsys, error, code, status):
    Output(as_json=True).error(error)
    told = json.loads(capsys.readouterr().out)["error"]
    assert told == {"code": code, "status": status, "message": "x", "errors": [], "hint": ""}


def shown(**spec) -> dict[str, object]:
    whole = msgspec.to_builtins(parse_run_spec({"suite": "people", "policy": "plain", **spec}))
    return spec_fields({"spec": whole, "spec_hash": "abc", "suite": "people@2", "policy": "plain"})


def test_a_dry_run_says_what_decides_a_run():
    fields = shown(
        steps=3, rollout={"prompts_per_batch": 2, "group_size": 4, "max_staleness": 2, "max_new_tokens": 32},
        optimiser={"learning_rate": 1e-4, "warmup_steps": 0, "decay": True}, lora={"rank": 8, "alpha": 16},
        evaluation={"dev_every": 5, "dev_tasks": 7},
    )  # fmt: skip
    assert fields == {
        "name": "", "suite": "people@2", "policy": "plain",
        "algorithm": "grpo, advantage grpo, aggregation token_mean, correction tis",
        "steps": "3, each on 2 groups of 4 episodes", "staleness": "at most 2 versions",
        "sampling": "temperature 1, at most 32 tokens a turn", "update": "lora, rank 8, alpha 16",
        "learning rate": "0.0001, linear, 0 steps of warm-up", "train tasks": "all",
        "evaluation": "at most 7 dev tasks, every 5 steps", "seed": 0, "hash": "abc",
    }  # fmt: skip


def test_a_dry_run_of_supervised_learning_says_epochs_and_no_groups():
    fields = shown(
        algorithm={"kind": "sft", "sft_epochs": 2, "sft_batch_size": 4}, trainer={"update": "full"},
        max_train_tasks=9, evaluation={"dev_tasks": 0},
    )  # fmt: skip
    assert fields["steps"] == "2 epochs in batches of 4 examples" and "staleness" not in fields
    assert (fields["update"], fields["train tasks"], fields["evaluation"]) == ("full", "at most 9", "none")
