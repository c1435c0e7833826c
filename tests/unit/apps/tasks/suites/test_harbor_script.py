"""Test scripts of task folders: which are run with the worker's test tools, and which ask for more than there is."""

import pytest

from apps.tasks.suites.dockerfile import NotRunnable
from apps.tasks.suites.harbor_script import needs_tools

TEMPLATE = r"""#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh
source $HOME/.local/bin/env
uvx \
  -p 3.13 \
  -w pytest==8.4.1 \
  -w pytest-json-ctrf==0.3.5 \
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
"""


@pytest.mark.parametrize(
    ("script", "needed"),
    [
        (TEMPLATE, True),
        ("pip install -q pytest==8.4.1 pytest-json-ctrf==0.3.5\npytest /tests\n", True),
        ("uv init\nuv add pytest==8.4.1\nuv run pytest /tests\n", True),
        ("python3 -m pytest /tests/test_state.py\n", True),
        (
            "# apt-get install jq, were there a network\ncmp /app/a /tests/a && echo 1 > /logs/verifier/reward.txt\n",
            False,
        ),
    ],
)
def test_what_the_tools_can_do(script, needed):
    assert needs_tools(script) is needed


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (TEMPLATE.replace("  -w pytest==", "  -w numpy==2.3.1 -w pytest=="), "line 6 installs numpy==2.3.1"),
        ("set -e\napt-get update && apt-get install -y jq\n", "line 2 installs jq"),
        ("pip3 install -r /tests/requirements.txt\n", "installs -r /tests/requirements.txt"),
        ("uvx --from rewardkit rewardkit /tests\n", "installs rewardkit"),
        ("uv pip install --system 'pandas>=2'\n", "installs pandas>=2"),
    ],
)
def test_what_they_cannot_is_refused_with_its_line(script, said):
    with pytest.raises(NotRunnable) as refused:
        needs_tools(script)
    assert said in str(refused.value)
