"""A stored hack played again: the decoys say the same, and so does the verdict."""

import msgspec

from gpu_workers.contracts.groups import GroupTranscript
from gpu_workers.contracts.replays import ReproduceJob, StoredEpisode
from gpu_workers.rollout.reproduce import reproduce
from tests.hacks.patterns import CODING
from tests.hacks.world import DONE, World, shell, write


async def test_a_hack_that_read_a_decoy_is_reproduced(world: World) -> None:
    turns = [shell("cat /solution/solve.sh; cat .verifier/expected.json"), write("solution.py", "x = 1\n"), DONE]
    transcript = await world.store_play(CODING, turns)
    record = GroupTranscript.decode(world.store.get(transcript)).episodes[0]
    assert record.reason_code == "FORBIDDEN_ACCESS" and record.sandbox.canary
    job = ReproduceJob(
        job_id="j", task=world.store.put(msgspec.json.encode(CODING)),
        episode=StoredEpisode(episode_id="e", transcript=transcript, index=0),
    )  # fmt: skip
    report = await reproduce(job, world.services())
    assert report.error == ""
    assert [call.same for call in report.calls] == [True, True]
    assert report.reason_code == "FORBIDDEN_ACCESS" and report.digest == report.stored_digest
