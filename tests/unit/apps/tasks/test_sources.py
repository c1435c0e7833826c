"""The suites that come with the platform, by one command each."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from apps.tasks.models import Suite
from apps.tasks.selectors import representativeness


def test_the_command_imports_toolbox_once(project, sent):
    out = StringIO()
    call_command("import_suite", "toolbox", "--project", "demo", stdout=out)
    call_command("import_suite", "toolbox", "--project", "demo", stdout=out)
    suite = Suite.objects.get()
    assert suite.source == "toolbox"
    assert out.getvalue().count(f"toolbox@1 in demo: {suite.tasks.count()} tasks, checking tasks.") == 2
    assert not representativeness(suite).shared_clusters


def test_an_unknown_project_says_what_to_do(db):
    with pytest.raises(CommandError, match="bootstrap"):
        call_command("import_suite", "toolbox", "--project", "nowhere")
