"""Human review of verifier verdicts: queue, items, labels."""
