"""KerasHub tasks: as models of ours, or through a cache of their own."""
