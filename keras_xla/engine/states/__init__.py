"""What stays on the device: states, and prompts that were read already."""
