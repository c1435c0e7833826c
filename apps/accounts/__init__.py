"""People, projects, roles and tokens: who may do what."""
