"""What people look at: progress and tables."""
