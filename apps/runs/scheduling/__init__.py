"""Pure decisions of a run's schedule: what to admit, what is stale, which groups form the next batch."""
