"""Speech to text: from audio to features, windows, prompts, timestamps and transcripts."""
