"""The client's guide names commands and options that exist, and every command."""

import re
import shlex
from pathlib import Path

import click
import pytest

from ratchet_client.commands.main import ratchet

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guides/client.md").read_text()
EXAMPLES = re.findall(r"^(?:\.venv/bin/)?ratchet (.+)$", GUIDE + (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("example", sorted(set(EXAMPLES)))
def test_each_example_is_a_command_with_its_options(example: str) -> None:
    words = shlex.split(re.split(r"[|<>;]", example)[0], comments=True)
    command: click.Command = ratchet
    context = click.Context(ratchet)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, example
        command = found
    command.make_parser(context).parse_args(words)


def test_every_command_is_in_the_guide() -> None:
    context = click.Context(ratchet)
    words = set(re.findall(r"ratchet ([a-z]+)", GUIDE))
    named = [ratchet.get_command(context, word) for word in words]
    assert {command.name for command in named if command} == set(ratchet.commands)
