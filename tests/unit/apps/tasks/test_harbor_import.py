"""Harbor task folders over REST and by command: what is stored, what is said, what is refused."""

import io
import json
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command

from apps.audit.models import AuditEvent
from apps.tasks.models import Suite, SuiteState
from apps.tasks.selectors import load_bundle
from tests.unit.apps.tasks.suites.harbor_folders import folder

HEADER = {
    "slug": "adding", "title": "Adding", "distribution": "Sums in files.",
    "failure_modes": [{"code": "WRONG_ANSWER", "meaning": "another sum"}],
}  # fmt: skip
TOML = """
slug = "adding"
title = "Adding"
distribution = "Sums in files."
failure_modes = [{code = "WRONG_ANSWER", meaning = "another sum"}]
"""


def zipped(files: dict[str, bytes]) -> SimpleUploadedFile:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for path, data in files.items():
            packed.writestr(path, data)
    return SimpleUploadedFile("tasks.zip", stream.getvalue(), "application/zip")


def post(client, archive, header=HEADER, **more):
    data = {"project": "demo", "header": json.dumps(header), "archive": archive, **more}
    return client.post("/api/v1/suites/", data, format="multipart", HTTP_IDEMPOTENCY_KEY="k1")


def test_an_archive_is_imported_and_says_what_it_changed(project, sent, engineer, client_of):
    files = {**folder(), **folder("more"), **folder("built", environment__Dockerfile="FROM a\nRUN make\n")}
    answer = post(client_of(engineer), zipped(files))
    assert answer.status_code == 202, answer.json()
    body = answer.json()
    assert (body["source"], body["num_tasks"], body["num_unchecked"], body["verifier"]["kind"]) == (
        "harbor",
        2,
        2,
        "script",
    )
    notes = {note["path"]: note["message"] for note in body["import_notes"]}
    assert notes["task built"].startswith("left out: environment/Dockerfile, line 2: RUN make")
    assert "imported as denied" in notes["tasks add-up, more: environment.network_mode"]
    assert "imported as separate" in notes["tasks add-up, more: verifier.environment_mode"]
    suite = Suite.objects.get()
    assert suite.import_notes == body["import_notes"] and suite.state == SuiteState.CHECKING
    assert AuditEvent.objects.get(tag="user:suite:import").after["import_notes"] == suite.import_notes
    assert load_bundle(suite.tasks.get(key="add-up")).contract.source_format == "harbor"


@pytest.mark.parametrize(
    ("files", "header", "field", "message"),
    [
        ({"../up/task.toml": b"x"}, HEADER, "'../up/task.toml'", "no . and no .."),
        (folder(task_dot_toml=None), HEADER, "header", "no folder with a task.toml"),
        (folder(task_dot_toml="[agent]\n"), HEADER, "task add-up", "states no version"),
        (folder(), {**HEADER, "failure_modes": []}, "failure_modes", "is empty"),
        (folder(), {**HEADER, "distribution": " "}, "distribution", "is empty"),
        (folder(), {**HEADER, "splits": {"tasks": {"add-up": "train"}}}, "tasks", "heldout"),
        (folder(), {"slug": "x"}, "header", "missing required field"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_nothing_is_imported(
    project, sent, engineer, client_of, files, header, field, message
):
    answer = post(client_of(engineer), zipped(files), header)
    assert answer.status_code == 422, answer.json()
    assert any(field in error["path"] and message in error["message"] for error in answer.json()["errors"]), (
        answer.json()
    )
    assert not Suite.objects.exists()


def test_what_is_no_archive_or_too_much_is_refused(project, sent, engineer, viewer, client_of):
    client = client_of(engineer)
    assert post(client, SimpleUploadedFile("a.zip", b"PK nonsense")).status_code == 422
    both = SimpleUploadedFile("t.jsonl", b"{}")
    data = {"project": "demo", "header": json.dumps(HEADER), "archive": zipped(folder()), "file": both}
    answer = client.post("/api/v1/suites/", data, format="multipart", HTTP_IDEMPOTENCY_KEY="k2")
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "archive")
    assert post(client_of(viewer), zipped(folder())).status_code == 403
    assert not Suite.objects.exists()


def test_the_command_reads_folders_and_archives(project, sent, tmp_path):
    for path, data in {**folder(), **folder("more")}.items():
        (tmp_path / "tasks" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks" / path).write_bytes(data)
    declared = tmp_path / "suite.toml"
    declared.write_text(TOML)
    out = io.StringIO()
    call_command("import_suite", "harbor", str(tmp_path / "tasks"), "--declare", str(declared), stdout=out)
    assert "imported as denied" in out.getvalue() and "adding@1 in demo: 2 tasks" in out.getvalue()
    packed = tmp_path / "tasks.zip"
    packed.write_bytes(zipped({**folder(), **folder("more")}).read())
    call_command("import_suite", "harbor", str(packed), "--declare", str(declared), stdout=out)
    assert Suite.objects.count() == 1, "the same content"
    with pytest.raises(CommandError, match="--declare"):
        call_command("import_suite", "harbor", str(packed))
    with pytest.raises(CommandError, match="PATH"):
        call_command("import_suite", "harbor")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("import_suite", "harbor", str(tmp_path / "none.zip"), "--declare", str(declared))
    declared.write_text("slug = ")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("import_suite", "harbor", str(packed), "--declare", str(declared))


def test_an_environment_that_is_not_installed_says_what_to_do(project, sent, tmp_path, monkeypatch):
    monkeypatch.setenv("RATCHET_ENVIRONMENTS_DIR", str(tmp_path))
    declared = tmp_path / "env.toml"
    declared.write_text(TOML + '[environment]\nkind = "openenv"\nid = "grid"\n')
    with pytest.raises(CommandError, match="make environments"):
        call_command("import_suite", "environment", str(declared))
    declared.write_text(TOML + '[environment]\nkind = "openenv"\nid = "grid"\npass_reward = 2.0\n')
    with pytest.raises(CommandError, match="pass_reward"):
        call_command("import_suite", "environment", str(declared))
    declared.write_text(TOML + '[environment]\nkind = "openenv"\n')
    with pytest.raises(CommandError, match="id"):
        call_command("import_suite", "environment", str(declared))
