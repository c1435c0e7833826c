"""Token-in-token-out conversations: chat template, session, and the tool call inside a turn. No torch here."""
