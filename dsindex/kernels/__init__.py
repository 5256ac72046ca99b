"""Every compiled loop, and how they are loaded."""
