"""RUN instructions of task images: small files and installs of what is there are followed, all else is named."""

import pytest

from apps.tasks.suites.docker_run import Unfollowed, Written, follow_run

APP = "/app"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r'printf "1\n2\n" > /app/n.txt', [Written("/app/n.txt", "1\n2\n")]),
        (r"printf '\x41\102\t%s is 100%%\n' done >> log", [Written("/app/log", "AB\tdone is 100%\n", append=True)]),
        ('echo "hello  world" > a.txt && echo -n x>>a.txt', [
            Written("/app/a.txt", "hello  world\n"), Written("/app/a.txt", "x", append=True),
        ]),
        ("mkdir -p out/deep /logs/agent; touch /app/done", [
            Written("/app/out/deep/.keep", "", append=True), Written("/app/done", "", append=True),
        ]),
        ("apt-get update && apt-get install -y curl python3 && rm -rf /var/lib/apt/lists/*", []),
        ("pip install --no-cache-dir pytest==8.4.1 pytest-json-ctrf==0.3.5", []),
        ("chmod +x /app/run.sh && true", []),
    ],
)  # fmt: skip
def test_what_needs_no_build_is_followed(text, written):
    assert follow_run(text, APP) == written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("make all", "make all"),
        ("apt-get install -y jq", "jq would have to be installed"),
        ("pip install numpy pytest", "numpy would have to be installed"),
        ("pip install -r requirements.txt", "-r requirements.txt would have to be installed"),
        ("echo $HOME > /app/x", "echo $HOME"),
        ("printf '%d\\n' 3 > /app/x", "printf"),
        ("printf '%s %s' one > /app/x", "printf"),
        ("echo 'a\\n' > /app/x", "echo"),
        ("echo x | tee /app/x", "echo"),
        ("echo x > /app/x || true", "echo"),
        ("(echo x > /app/x)", "echo"),
        ("rm -rf /app", "rm -rf /app"),
        ("curl https://e.org > /app/x", "curl"),
        ("--mount=type=cache echo x > /app/x", "--mount"),
        ('["make"]', "make"),
        ("echo 'open > /app/x", "open"),
        ("cat <<EOF > /app/x", "cat"),
    ],
)
def test_what_only_a_shell_could_work_out_is_named(text, said):
    with pytest.raises(Unfollowed) as refused:
        follow_run(text, APP)
    assert said in str(refused.value)
