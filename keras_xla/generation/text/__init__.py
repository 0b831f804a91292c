"""Text in, text out: prompts, chats, streams, grammars, log-probabilities."""
