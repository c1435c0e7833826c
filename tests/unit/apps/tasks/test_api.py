"""Suites and tasks over REST: uploads, refusals by line and field, and who sees held-out content."""

import json
from uuid import uuid4

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from apps.audit.models import AuditEvent
from apps.tasks.models import Suite, Task

HEADER = {
    "slug": "capitals",
    "title": "Capitals",
    "distribution": "Capitals of Europe.",
    "failure_modes": [{"code": "WRONG_ANSWER", "meaning": "another city"}],
    "verifier": {"kind": "exact"},
}
TASKS = [
    {"key": "fr", "split": "train", "prompt": "Capital of France?", "expected": "Paris", "reference": "Paris"},
    {"key": "it", "split": "heldout", "prompt": "Capital of Italy?", "expected": "Rome", "reference": "Rome"},
]


def upload(client, lines: list[str], header=HEADER, **headers):
    file = SimpleUploadedFile("tasks.jsonl", "\n".join(lines).encode())
    body = {"project": "demo", "header": json.dumps(header), "file": file}
    return client.post("/api/v1/suites/", body, format="multipart", **headers)


def test_a_file_is_imported_whole_and_once(sent, engineer, client_of):
    client = client_of(engineer)
    answer = upload(client, [json.dumps(task) for task in TASKS])
    assert (answer.status_code, answer.json()["state"], answer.json()["num_tasks"]) == (202, "checking", 2)
    url = answer.headers["Location"]
    assert client.get(url).json()["representativeness"]["splits"][0]["split"] == "train"
    same = client.post("/api/v1/suites/", {"project": "demo", "header": HEADER, "tasks": TASKS})
    assert (same.status_code, same.headers["Location"]) == (202, url)
    assert Suite.objects.count() == 1


def test_files_of_tools_come_with_the_suite(sent, engineer, client_of):
    client = client_of(engineer)
    tools = [{"file": "tools.py"}, {"name": "shell"}, {"name": "notes.read", "server": "notes", "parameters": {}}]
    servers = [{"name": "notes", "source": "print('<b>')", "protocol": "2025-11-25"}]
    header = {**HEADER, "max_turns": 3, "tools": tools, "tool_servers": servers}
    source = b"from gpu_workers.tools import Tool\n\nclass Look(Tool):\n    def call(self, city: str): return city\n"

    def send(*files: SimpleUploadedFile):
        tasks = SimpleUploadedFile("tasks.jsonl", "\n".join(json.dumps(task) for task in TASKS).encode())
        body = {"project": "demo", "header": json.dumps(header), "file": tasks, "tool_files": files}
        return client.post("/api/v1/suites/", body, format="multipart")

    missing = send(SimpleUploadedFile("other.py", source))
    assert missing.json()["errors"][0]["path"] == "header: tools[0].file"
    answer = send(SimpleUploadedFile("other.py", b"x"), SimpleUploadedFile("tools.py", source))
    assert answer.status_code == 202, answer.json()
    task = Task.objects.get(key="fr")
    content = client.get(f"/api/v1/tasks/{task.pk}/").json()["content"]
    assert [tool["name"] for tool in content["tools"]] == ["look", "shell", "notes.read"]
    assert content["tools"][0]["parameters"]["required"] == ["city"]
    assert content["tool_servers"][0]["name"] == "notes"
    browser = Client()
    browser.force_login(engineer)
    page = browser.get(f"/tasks/{task.pk}/").content.decode()
    assert "of the MCP server notes" in page and "revision 2025-11-25" in page and "&lt;b&gt;" in page
    broken = send(SimpleUploadedFile("tools.py", source + b"("))
    assert broken.json()["errors"][0] == {
        "path": "header: tools[0].source",
        "message": "line 5: does not compile: '(' was never closed",
    }
    unreadable = send(SimpleUploadedFile("tools.py", b"\xff"))
    assert unreadable.json()["errors"][0]["path"] == "tool_files: tools.py"


def test_the_same_key_with_another_file_is_refused(sent, engineer, client_of):
    client = client_of(engineer)
    key = {"headers": {"Idempotency-Key": "once"}}
    lines = [json.dumps(task) for task in TASKS]
    first = upload(client, lines, **key)
    assert upload(client, lines, **key).json() == first.json()
    other = upload(client, [*lines, json.dumps({**TASKS[0], "key": "es", "prompt": "Capital of Spain?"})], **key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_a_malformed_file_names_lines_and_fields_and_imports_nothing(sent, engineer, client_of):
    lines = [
        json.dumps(TASKS[0]),
        "{not json",
        json.dumps({**TASKS[1], "split": "holdout"}),
        json.dumps({**TASKS[1], "surprise": 1}),
    ]
    answer = upload(client_of(engineer), lines)
    assert (answer.status_code, answer.json()["code"]) == (422, "suite_refused")
    assert answer.headers["Content-Type"] == "application/problem+json"
    paths = [error["path"] for error in answer.json()["errors"]]
    assert paths == ["line 2", "line 3: split", "line 4: surprise"]
    assert not Suite.objects.exists()
    assert not Task.objects.exists()


def test_a_wrong_header_names_the_field(sent, engineer, client_of):
    client = client_of(engineer)
    lines = [json.dumps(task) for task in TASKS]
    wrong = upload(client, lines, {**HEADER, "verifier": {"kind": "magic"}})
    assert wrong.json()["errors"][0]["path"] == "header: verifier.kind"
    silent = upload(client, lines, {**HEADER, "distribution": ""})
    assert (silent.status_code, silent.json()["errors"][0]["path"]) == (422, "distribution")
    broken = client.post("/api/v1/suites/", {"project": "demo", "header": "{", "tasks": TASKS})
    assert broken.json()["errors"][0]["path"] == "header"
    neither = client.post("/api/v1/suites/", {"project": "demo", "header": HEADER})
    assert neither.json()["errors"][0]["path"] == "file"
    assert client.post("/api/v1/suites/", [1]).status_code == 400


def test_a_body_that_is_too_large_or_of_unknown_length_is_refused_unread(sent, engineer, client_of):
    client = client_of(engineer)
    body = {"project": "demo", "header": HEADER, "tasks": TASKS}
    assert client.post("/api/v1/suites/", body, CONTENT_LENGTH=str(33 * 2**20)).status_code == 413
    assert client.post("/api/v1/suites/", body, CONTENT_LENGTH="").status_code == 411
    assert not Suite.objects.exists()


@pytest.mark.parametrize("who", ["viewer", "stranger"])
def test_who_may_not_import(request, sent, project, who, client_of):
    client = client_of(request.getfixturevalue(who))
    status = {"viewer": 403, "stranger": 404}[who]
    assert client.post("/api/v1/suites/", {"project": "demo", "header": HEADER, "tasks": TASKS}).status_code == status
    assert client.post("/api/v1/suites/import/", {"project": "demo", "source": "toolbox"}).status_code == status


def test_an_unknown_source_is_named(engineer, client_of):
    answer = client_of(engineer).post("/api/v1/suites/import/", {"project": "demo", "source": "imagenet"})
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["path"]) == (400, "source")
    assert error["message"] == '"imagenet" is none of bfcl, human-eval, reasoning-gym, toolbox.'


def test_suites_of_other_projects_and_guessed_ids_are_not_there(suite, engineer, stranger, client_of):
    task = suite.tasks.first()
    urls = [f"/api/v1/suites/{suite.pk}/", f"/api/v1/suites/{suite.pk}/tasks/", f"/api/v1/tasks/{task.pk}/"]
    guessed = [f"/api/v1/suites/{uuid4()}/", f"/api/v1/suites/{uuid4()}/tasks/", f"/api/v1/tasks/{uuid4()}/"]
    for url in urls:
        assert client_of(engineer).get(url).status_code == 200
        assert client_of(stranger).get(url).status_code == 404
    for url in guessed:
        assert client_of(engineer).get(url).status_code == 404
    assert client_of(stranger).get("/api/v1/suites/").json()["results"] == []
    assert client_of(stranger).post(f"/api/v1/suites/{suite.pk}/recheck/").status_code == 404
    assert client_of(stranger).post(f"/api/v1/tasks/{task.pk}/release/", {"reason": "x"}).status_code == 404


def test_held_out_content_is_hidden_from_who_trains(suite, engineer, client_of):
    client = client_of(engineer)
    rows = client.get(f"/api/v1/suites/{suite.pk}/tasks/").json()["results"]
    assert [row["key"] for row in rows] == ["t1", "t2", "d1", "h1", "h2"]
    assert [row["content_hidden"] for row in rows] == [False, False, False, True, True]
    assert [row["prompt_preview"] for row in rows] == ["1 + 2?", "2 + 1?", "0 + 3?", None, None]
    for row in rows:
        answer = client.get(f"/api/v1/tasks/{row['id']}/")
        assert (answer.json()["content"] is None) == row["content_hidden"]
        assert "secret" not in answer.content.decode() or not row["content_hidden"]
        assert (answer.json()["task_hash"] == row["task_hash"] == "") == row["content_hidden"]
    assert not AuditEvent.objects.filter(tag="user:heldout:read").exists()


def test_held_out_content_is_shown_with_the_right_and_audited(suite, approver, client_of):
    client = client_of(approver)
    client.get(f"/api/v1/suites/{suite.pk}/tasks/?split=train")
    assert not AuditEvent.objects.filter(tag="user:heldout:read").exists()
    rows = client.get(f"/api/v1/suites/{suite.pk}/tasks/?split=heldout").json()["results"]
    assert [row["prompt_preview"] for row in rows] == ["secret 3 + 0?", "secret 4 - 1?"]
    event = AuditEvent.objects.get(tag="user:heldout:read")
    assert (event.actor_name, event.after["tasks"]) == ("pam", ["h1", "h2"])
    detail = client.get(f"/api/v1/tasks/{rows[0]['id']}/").json()
    assert detail["content"]["verifier"]["expected"] == 3
    assert AuditEvent.objects.filter(tag="user:heldout:read").count() == 2


def test_filters_and_release(suite, check, engineer, client_of):
    check(suite, "t2")
    client = client_of(engineer)
    url = f"/api/v1/suites/{suite.pk}/tasks/"
    keys = [row["key"] for row in client.get(f"{url}?tag=swapped&state=quarantined").json()["results"]]
    assert keys == ["t2"]
    listed = client.get("/api/v1/suites/?project=demo&state=ready").json()["results"]
    assert [(row["num_tasks"], row["num_ready"], row["num_quarantined"]) for row in listed] == [(5, 4, 1)]
    task = suite.tasks.get(key="t2")
    assert client.post(f"/api/v1/tasks/{task.pk}/release/", {}).json()["errors"][0]["path"] == "reason"
    released = client.post(f"/api/v1/tasks/{task.pk}/release/", {"reason": "read it"})
    assert (released.status_code, released.json()["state"]) == (200, "ready")
    assert client.post(f"/api/v1/tasks/{task.pk}/release/", {"reason": "read it"}).status_code == 409
