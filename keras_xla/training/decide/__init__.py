"""Which way the steps of a model run: measured, remembered, and asked again where shapes change."""
