"""suites, policies and channels from files to production."""

import json

from apps.policies.models import Channel
from apps.tasks.models import Suite

HEADER = """
slug: greetings
title: Greetings
distribution: One word to be repeated.
failure_modes: [{code: WRONG_ANSWER, meaning: another word}]
verifier: {kind: exact}
"""


def test_a_suite_from_files_and_a_policy_in_a_channel(ratchet, world, tmp_path):
    world.suite.verifier = {"kind": "exact", "version": 1}  # as an import writes it
    world.suite.save()
    (tmp_path / "header.yaml").write_text(HEADER)
    rows = [
        {"key": f"t{n}", "split": split, "prompt": f"Say w{n}", "expected": f"w{n}", "reference": f"w{n}"}
        for n, split in enumerate(["train", "dev", "heldout"])
    ]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"key": "t9", "split": "nowhere"}]))
    refused = ratchet("suites", "import", "header.yaml", "tasks.jsonl", code=3).stderr
    assert "line 4" in refused and not Suite.objects.filter(slug="greetings").exists()
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = json.loads(ratchet("suites", "import", "header.yaml", "tasks.jsonl", "--no-wait", "--json").stdout)
    assert imported["slug"] == "greetings" and Suite.objects.get(slug="greetings").tasks.count() == 3
    assert "greetings@1" in ratchet("suites", "list").stdout
    assert "heldout\t" in ratchet("suites", "show", "greetings").stdout
    assert "\thidden" in ratchet("suites", "tasks", "greetings", "--split", "heldout").stdout
    ratchet("policies", "create", "plain", "--base-model", "tiny")
    assert "plain" in ratchet("policies", "list").stdout
    ratchet("channels", "set", "production", "plain", code=3)
    ratchet("channels", "set", "production", "plain", role="approver")
    assert Channel.objects.get().policy.slug == "plain"
    assert "initial to plain" in ratchet("channels", "show", "production").stdout
