"""One small file a family: its config becomes a spec, its weight names a table."""
