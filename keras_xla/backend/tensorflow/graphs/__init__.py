"""What a traced graph is made of, and what can be told from it."""
