"""Home and the gate page: what a person may decide, and what stays closed."""

import pytest
from django.test import Client

from apps.audit.models import AuditEvent
from apps.promotions.services import decide


def get(user, path: str, status: int = 200) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(path)
    assert response.status_code == status
    return response.content.decode()


@pytest.fixture
def passed(world):
    return world.finish(world.open())


def test_home_puts_the_decision_first_for_who_can_make_it(passed, approver, engineer):
    text = get(approver, "/")
    assert "One decision waits for you." in text
    assert "Promote candidate?" in text
    assert f'href="/gates/{passed.pk}/"' in text
    assert "Nothing waits for you." in get(engineer, "/")


def test_a_passed_gate_offers_approval_to_an_approver_only(passed, approver, engineer, viewer):
    text = get(approver, f"/gates/{passed.pk}/")
    assert "Better on held-out tasks, and nothing else got worse" in text
    assert f'data-decide="/api/v1/gates/{passed.pk}/decision/"' in text
    assert f'data-digest="{passed.evidence_digest}"' in text
    for user in (engineer, viewer):
        closed = get(user, f"/gates/{passed.pk}/")
        assert "data-decide" not in closed
        assert "Only approvers decide." in closed


def test_answers_to_heldout_tasks_are_closed_without_the_right_and_audited_with_it(passed, approver, engineer):
    closed = get(engineer, f"/gates/{passed.pk}/")
    assert "Answers are closed to you" in closed
    assert "heldout-024" not in closed
    assert not AuditEvent.objects.filter(tag="user:heldout:read", actor_name="ed").exists()
    assert "heldout-024" in get(approver, f"/gates/{passed.pk}/")
    assert AuditEvent.objects.filter(tag="user:heldout:read", actor_name="pam").count() == 1


def test_what_is_not_measured_is_said_and_drawn_nowhere(passed, approver):
    text = get(approver, f"/gates/{passed.pk}/")
    assert "What is not measured is not counted as good." in text
    assert "unsafe actions" in text[text.index("Not measured:") :]


def test_a_failed_gate_offers_no_approval(world, approver):
    gate = world.finish(world.open(), success=0.1)
    text = get(approver, f"/gates/{gate.pk}/")
    form = text[text.index("data-decide") :]
    assert 'value="approve" data-verb="Approve" data-needs="0" disabled' in form
    assert 'value="reject" data-verb="Reject" data-needs="10" checked' in form


def test_an_answer_is_escaped(world, approver):
    gate = world.open()
    gate = world.finish(gate, answer="<script>alert(1)</script>")
    text = get(approver, f"/gates/{gate.pk}/")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_after_approval_the_page_shows_the_replay_and_the_way_back(passed, world, approver, viewer):
    decide(gate=passed, kind="approve", by=approver, evidence_digest=passed.evidence_digest)
    text = get(approver, f"/gates/{passed.pk}/")
    assert "pam approved: candidate went to production. It serves now." in text
    assert "The regression set is being replayed." in text
    assert "/api/v1/channels/demo/production/rollback/" in text
    assert "/rollback/" not in get(viewer, f"/gates/{passed.pk}/")
    assert 'class="held"' in get(approver, "/")


def test_an_override_is_confirmed_by_another_approver(world, approver, second_approver):
    gate = world.finish(world.open(), success=0.1)
    decide(gate=gate, kind="override", by=approver, reason="We must have it.", evidence_digest=gate.evidence_digest)
    assert "Your override waits for a second approver." in get(approver, f"/gates/{gate.pk}/")
    assert f'data-decide="/api/v1/gates/{gate.pk}/confirm/"' in get(second_approver, f"/gates/{gate.pk}/")


def test_an_evaluation_under_way_shows_progress(world, approver):
    gate = world.open()
    text = get(approver, f"/gates/{gate.pk}/")
    assert "Measuring candidate against incumbent" in text
    assert f'data-progress="/gates/{gate.pk}/progress/"' in text
    assert "0 of 240 groups" in text
    assert '"total": 240' in get(approver, f"/gates/{gate.pk}/progress/")


def test_strangers_find_no_gate(passed, stranger, approver):
    for path in (f"/gates/{passed.pk}/", f"/gates/{passed.pk}/progress/"):
        assert "There is nothing here that you may see" in get(stranger, path, 404)
    assert str(passed.pk) not in get(stranger, "/gates/")
    assert str(passed.pk) in get(approver, "/gates/")
