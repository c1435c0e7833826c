"""Pure definitions of advantages, losses and corrections: typed inputs in, loss and metrics out."""
