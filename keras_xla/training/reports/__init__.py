"""What was decided, compiled and run, told to people."""
