"""How often a suite's verifier is wrong, measured on candidates whose truth something stronger knows."""
