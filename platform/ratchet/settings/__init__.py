"""Django settings, one module per mode; `ratchet.env.use_settings` picks by RATCHET_ENV."""
