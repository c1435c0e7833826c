"""An environment as a user of OpenEnv writes one: a locker whose number is found by asking higher or lower."""
