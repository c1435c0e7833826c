"""Names of Celery queues and jobs: the only coupling between the control plane and the workers."""

CONTROL = "control"  # reconciler, reaper, gates
INGEST = "ingest"  # reports of workers
WEBHOOK = "webhook"  # requests to addresses outside, which may be slow
HEARTBEAT = "heartbeat"  # liveness, never behind a batch of episodes
ROLLOUT = "rollout"  # one message per group
VERIFY = "verify"  # import checks of tasks, re-verification
TRAIN = "train"  # one long job per run attempt
FLEET = "fleet"  # installs policy versions on engines

JOB_INGEST = "ratchet.ingest_report"
JOB_INGEST_POINTS = "ratchet.ingest_points"
JOB_HEARTBEAT = "ratchet.heartbeat"
JOB_ROLLOUT = "ratchet.rollout_group"
JOB_VERIFY = "ratchet.verify_tasks"
JOB_TRAIN = "ratchet.train_run"
JOB_FLEET = "ratchet.install_policy"
JOB_REPRODUCE = "ratchet.reproduce_episode"
JOB_PROBE = "ratchet.probe_tasks"
JOB_MEASURE = "ratchet.measure_verifier"

SIGNAL_GROUPS = "ratchet_signal_groups"  # remote-control command of rollout workers, broadcast; may be lost

CHANNEL_CHANGES = "ratchet.channels"  # Redis pub/sub topic: channel moved or token revoked


def batch_queue(run_id: str, attempt: int) -> str:
    """Name of the queue one trainer attempt reads its batches from."""
    return f"batches.{run_id}.{attempt}"
