"""`python -m ratchet_client` is the `ratchet` command."""

from ratchet_client.commands.main import main

main()
