"""What the stacks of a model are built of."""
