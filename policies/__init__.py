"""VLA networks, action tokens, objectives and advantages."""
