"""Small changes to a right program, as candidates of which a verifier should tell the wrong ones."""
