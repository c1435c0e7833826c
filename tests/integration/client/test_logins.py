"""login, tokens, exit codes and what is printed when things go wrong."""

import json
import os
import subprocess

import pytest


@pytest.fixture
def logged_in(application, token_of, environment, arguments, tmp_path):
    """Runs the command with nothing but what `ratchet login` stored."""
    secret = token_of("engineer")

    def run(*words, code=0, stdin="", **more):
        done = subprocess.run(
            arguments(*words), env=environment(**more), input=stdin, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == code, done.stderr
        return done

    run.secret = secret
    run.output = run("login", application.url, "--with-token", stdin=secret + "\n")
    run.stored = tmp_path / "home/.config/ratchet/credentials.json"
    return run


def test_a_token_is_stored_for_its_owner_alone_and_never_printed(logged_in, application):
    printed = logged_in.output.stdout + logged_in.output.stderr
    assert "lab-engineer" in printed and logged_in.secret not in printed
    assert logged_in.stored.stat().st_mode & 0o777 == 0o600
    assert logged_in.stored.parent.stat().st_mode & 0o777 == 0o700
    me = json.loads(logged_in("whoami", "--json").stdout)
    assert me["username"] == "lab-engineer" and logged_in.secret not in str(me)
    logged_in("logout")
    assert logged_in.secret not in logged_in.stored.read_text()
    assert "ratchet login" in logged_in("runs", "list", code=3).stderr


def test_a_token_that_others_could_read_is_refused(logged_in):
    logged_in.stored.chmod(0o644)
    assert "chmod 600" in logged_in("whoami", code=3).stderr


def test_a_wrong_token_is_not_stored(logged_in, application):
    before = logged_in.stored.read_text()
    refused = logged_in("login", application.url, "--with-token", stdin="rt_wrong\n", code=3)
    assert "/account/" in refused.stderr and "rt_wrong" not in refused.stderr
    assert logged_in.stored.read_text() == before


def test_a_secret_is_shown_once_or_only_written_to_a_file(ratchet, tmp_path):
    issued = json.loads(ratchet("tokens", "create", "ci", "--scope", "run:read", "--days", 1, "--json").stdout)
    kept = ratchet("tokens", "create", "file", "--scope", "run:read", "--save-to", "secret")
    file = tmp_path / "secret"
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_text().strip() not in kept.stdout
    for secret in (issued["token"], file.read_text().strip()):
        assert "[]" in ratchet("runs", "list", "--json", RATCHET_TOKEN=secret).stdout
    listed = ratchet("tokens", "list").stdout
    assert "run:read" in listed and issued["token"] not in listed
    ratchet("tokens", "revoke", issued["id"])
    ratchet("runs", "list", code=3, RATCHET_TOKEN=issued["token"])


REFUSALS = [
    (["runs", "show", "7"], "no run 7 in project lab"),
    (["runs", "show", "../../admin"], "give its number"),
    (["api", "http://127.0.0.1:1/"], "no address below"),
    (["api", "runs/../../../admin/"], "no address below"),
    (["submit"], "Missing argument"),  # a usage error is an error, not 2
    (["runs", "list", "-p", "other", "--state", "nonsense"], "must be one of queued, "),
    (["--url", "ftp://x", "whoami"], "no address of a server"),
    (["tokens", "revoke", "00000000-0000-0000-0000-000000000000"], "no such object"),
]


def test_errors_say_what_is_wrong_and_end_with_3(ratchet):
    for words, said in REFUSALS:
        assert said in ratchet(*words, code=3).stderr


def test_a_server_that_is_away_is_an_error_with_advice(ratchet, application):
    application.stop()
    said = ratchet("submit", "-", "-p", "lab", stdin="suite: sums", code=3, RATCHET_PATIENCE="0").stderr
    assert "does not answer" in said and "Is the server up" in said
    application.start()


def test_each_shell_gets_a_completion(environment, arguments, ratchet):
    scripts = {shell: ratchet("completion", shell).stdout for shell in ("bash", "zsh", "fish")}
    assert all("_RATCHET_COMPLETE" in script for script in scripts.values())
    done = subprocess.run(
        ["bash", "-c", 'eval "$1"; complete -p ratchet', "bash", scripts["bash"]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer = ratchet(
        "x", RATCHET_URL="", _RATCHET_COMPLETE="bash_complete", COMP_WORDS="ratchet gate dec", COMP_CWORD="2"
    )
    assert answer.stdout.strip() == "plain,decide"


def test_a_reader_that_has_enough_ends_the_command_quietly(ratchet, environment, arguments, application, token_of):
    env = environment(RATCHET_URL=application.url, RATCHET_TOKEN=token_of("engineer"))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(arguments("whoami"), env=env, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
