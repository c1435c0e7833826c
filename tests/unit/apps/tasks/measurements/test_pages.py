"""Pages and API of a measured verifier: what is shown, what is closed, what is escaped, what is audited."""

import pytest
from django.test import Client

from apps.audit.models import AuditEvent
from apps.tasks.measurements.models import MeasuredCandidate
from tests.support.evaluations import committed
from tests.support.measurements import Plane

CHOICES = {"per_task": 6, "num_inputs": 40}


def get(user, path: str, status: int = 200) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(path)
    assert response.status_code == status, path
    return response.content.decode()


@pytest.fixture
def measured(plane: Plane) -> Plane:
    plane.measure(**CHOICES)
    return plane


def candidate_of(key: str) -> MeasuredCandidate:
    return MeasuredCandidate.objects.get(measured__task__key=key, verdict="pass", truth="wrong")


def test_before_during_and_after(plane: Plane, engineer, viewer):
    url, suite_url = f"/suites/{plane.suite.pk}/verifier/", f"/suites/{plane.suite.pk}/"
    api = f"/api/v1/suites/{plane.suite.pk}/verifier-measurements/"
    assert "not measured" in get(viewer, suite_url) and f'href="{url}"' in get(viewer, suite_url)
    assert f'data-post="{api}"' in get(engineer, url) and "data-post" not in get(viewer, url)
    measurement = plane.request(**CHOICES)
    running = get(viewer, url)
    assert f'data-progress="/api/v1/verifier-measurements/{measurement.pk}/"' in running and "progress.js" in running
    plane.work()
    text = get(viewer, url)
    assert "It passes 2 of " in text and "wrong programs" in text and "Korn–Graubard" in text
    assert "By kind of change" in text and "progress.js" not in text
    assert "of what is wrong" in get(viewer, suite_url)


def test_a_false_pass_opens_with_its_difference(measured: Plane, engineer):
    found = candidate_of("t1")
    assert f'href="/measured/{found.pk}/"' in get(engineer, f"/suites/{measured.suite.pk}/verifier/")
    text = get(engineer, f"/measured/{found.pk}/")
    assert "False pass" in text and found.input in text
    assert '<span class="x">-    return b</span>' in text and '<span class="v">+    return None</span>' in text
    assert "The larger one: t1 &lt;b&gt;" in text and "t1 <b>" not in text, "escaped"


def test_held_out_candidates_are_closed_without_the_right(measured: Plane, engineer, approver):
    found = candidate_of("h1")
    url = f"/measured/{found.pk}/"
    listed = f"/suites/{measured.suite.pk}/verifier/?selection=all"
    for text in (get(engineer, url), get(engineer, listed)):
        assert found.input not in text and "The larger one: h1" not in text and "return None" not in text
        assert "eld-out" in text
    assert not AuditEvent.objects.filter(tag="user:heldout:read").exists()
    assert "+    return None" in get(approver, url)
    look = AuditEvent.objects.filter(tag="user:heldout:read").latest("pk")
    assert look.after["tasks"] == ["h1"]


def test_the_api_says_the_same(measured: Plane, engineer, approver, client_of):
    found = candidate_of("h1")
    closed = client_of(engineer).get(f"/api/v1/measured-candidates/{found.pk}/").json()
    assert closed["content_hidden"] and not any(closed[name] for name in ("text", "diff", "input", "expected", "got"))
    opened = client_of(approver).get(f"/api/v1/measured-candidates/{found.pk}/").json()
    assert opened["diff"][-1] == "+    return None" and opened["got"] == "None" and opened["task"]["key"] == "h1"
    rows = client_of(engineer).get(f"/api/v1/verifier-measurements/{opened['measurement']}/candidates/").json()
    assert rows["total"] == 2 and {row["content_hidden"] for row in rows["results"]} == {True, False}


def test_starting_and_following_by_api(plane: Plane, engineer, viewer, client_of):
    url = f"/api/v1/suites/{plane.suite.pk}/verifier-measurements/"
    assert client_of(viewer).post(url, CHOICES, format="json").status_code == 403
    assert client_of(engineer).post(url, {"per_task": 0}, format="json").status_code == 400
    with committed():
        started = client_of(engineer).post(url, CHOICES, format="json")
    assert started.status_code == 202 and started.json()["progress"] == {"done": 0, "total": 2, "left_seconds": None}
    address = started.headers["Location"]
    assert client_of(viewer).get(address).status_code == 202
    assert client_of(engineer).post(url, {"per_task": 2}, format="json").json()["id"] == started.json()["id"]
    plane.work()
    found = client_of(viewer).get(address)
    assert found.status_code == 200
    rate = found.json()["rates"]["false_pass"]
    assert rate["count"] == 2 and rate["clustered"]["low"] < rate["estimate"] < rate["wilson"]["high"]
    assert [row["id"] for row in client_of(viewer).get(url).json()["results"]] == [started.json()["id"]]
    assert client_of(engineer).post(url, CHOICES, format="json").status_code == 200, "nothing new to measure"


def test_strangers_see_nothing(measured: Plane, stranger, client_of):
    found = candidate_of("t1")
    measurement = found.measured.measurement_id
    get(stranger, f"/suites/{measured.suite.pk}/verifier/", 404)
    get(stranger, f"/measured/{found.pk}/", 404)
    for path in (
        f"suites/{measured.suite.pk}/verifier-measurements/", f"verifier-measurements/{measurement}/",
        f"verifier-measurements/{measurement}/candidates/", f"measured-candidates/{found.pk}/",
    ):  # fmt: skip
        assert client_of(stranger).get(f"/api/v1/{path}").status_code == 404, path
    refused = client_of(stranger).post(f"/api/v1/suites/{measured.suite.pk}/verifier-measurements/", {}, format="json")
    assert refused.status_code == 404


def test_lists_by_selection_and_offset(measured: Plane, engineer, client_of):
    measurement = candidate_of("t1").measured.measurement_id
    url = f"/api/v1/verifier-measurements/{measurement}/candidates/"
    rows = client_of(engineer).get(url, {"selection": "all", "limit": 5}).json()
    assert rows["total"] == 12 and rows["next_offset"] == 5 and len(rows["results"]) == 5
    assert client_of(engineer).get(url, {"selection": "undecided"}).json()["total"] == 0
    for wrong in ({"selection": "x"}, {"limit": 0}, {"limit": 999}, {"offset": "x"}):
        assert client_of(engineer).get(url, wrong).status_code == 400, wrong
    get(engineer, f"/suites/{measured.suite.pk}/verifier/?selection=nonsense", 400)
    get(engineer, f"/suites/{measured.suite.pk}/verifier/?selection=all&offset=x")
