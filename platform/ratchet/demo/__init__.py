"""The demo: two projects, two runs, two decisions, driven through the REST API like any user would."""
