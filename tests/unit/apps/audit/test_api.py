"""The audit trail over REST: filtered by right and by query, exported, verified."""

import csv
import io
import json

import pytest

from apps.audit.services import record


@pytest.fixture
def events(project, other_project, engineer):
    record(tag="user:run:submit", by=engineer, project=project, subject=engineer, reason="=cmd()", evidence={"a": 1})
    record(tag="user:run:cancel", by=engineer, project=project, subject=engineer)
    record(tag="user:run:submit", by=None, project=other_project, subject=other_project)
    record(tag="user:basemodel:register", by=None, project=None, subject=project)


def tags(answer) -> list[str]:
    return [event["tag"] for event in answer.json()["results"]]


def test_everyone_sees_only_their_projects_and_only_with_the_right(events, engineer, viewer, admin_user, client_of):
    assert tags(client_of(engineer).get("/api/v1/audit/")) == ["user:run:cancel", "user:run:submit"]
    assert tags(client_of(viewer).get("/api/v1/audit/")) == []
    assert len(tags(client_of(admin_user).get("/api/v1/audit/"))) == 4


def test_filters(events, engineer, client_of):
    client = client_of(engineer)
    assert tags(client.get("/api/v1/audit/?tag=user:run:cancel")) == ["user:run:cancel"]
    assert tags(client.get("/api/v1/audit/?project=demo&actor=ed")) == ["user:run:cancel", "user:run:submit"]
    assert tags(client.get("/api/v1/audit/?project=other")) == []
    assert tags(client.get(f"/api/v1/audit/?subject_type=accounts.user&subject_id={engineer.pk + 1}")) == []


def test_verify_needs_a_project_and_the_right(events, engineer, viewer, stranger, client_of):
    answer = client_of(engineer).get("/api/v1/audit/verify/?project=demo").json()
    assert (answer["ok"], answer["num_events"], answer["broken_at"]) == (True, 2, None)
    assert client_of(engineer).get("/api/v1/audit/verify/").json()["errors"][0]["path"] == "project"
    assert client_of(viewer).get("/api/v1/audit/verify/?project=demo").status_code == 403
    assert client_of(stranger).get("/api/v1/audit/verify/?project=demo").status_code == 404


def test_export_in_order_and_harmless_in_a_spreadsheet(events, engineer, viewer, client_of):
    client = client_of(engineer)
    lines = client.get("/api/v1/audit/export/?project=demo").getvalue().decode().splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1, 2]
    text = client.get("/api/v1/audit/export/?project=demo&as=csv").getvalue().decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["reason"] for row in rows] == ["'=cmd()", ""]
    assert json.loads(rows[0]["evidence"]) == {"a": 1}
    assert client.get("/api/v1/audit/export/?project=demo&as=xml").json()["errors"][0]["path"] == "as"
    assert client_of(viewer).get("/api/v1/audit/export/?project=demo").status_code == 403
