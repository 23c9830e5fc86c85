"""What people decide about groups and letters, and what they read: beside the job, never in its way."""
