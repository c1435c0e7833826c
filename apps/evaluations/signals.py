"""Signals of evaluations, sent inside the transaction; receivers do slow things on commit."""

from django.dispatch import Signal

evaluation_finished = Signal()  # evaluation: finished, failed or cancelled
evaluations_ticked = Signal()  # nothing: every two seconds, outside any transaction
adapters_retiring = Signal()  # base_model, names: set[str]; a receiver returns the names that it still needs
