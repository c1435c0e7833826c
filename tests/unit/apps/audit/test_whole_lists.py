"""Every list of the API can be had whole, as JSON lines."""

import json

from apps.audit.services import record


def test_every_list_can_be_had_whole(project, owner, client_of):
    for _ in range(450):
        record(tag="user:run:submit", by=None, project=project, subject=project)
    client = client_of(owner)
    answer = client.get("/api/v1/audit/?as=jsonl&tag=user:run:submit")
    assert answer["Content-Type"] == "application/x-ndjson"
    rows = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]
    assert len({row["sequence"] for row in rows}) == 450
    for query in ("as=xml", "as=jsonl&page_size=5", "as=jsonl&cursor=x"):
        assert client.get(f"/api/v1/audit/?{query}").status_code == 400
    beyond = client.get("/api/v1/audit/?as=jsonl&until=0399-05-24T00:17:23%2B20:08")  # PostgreSQL has no such zone
    assert (beyond.status_code, beyond.json()["code"]) == (400, "out_of_range")
