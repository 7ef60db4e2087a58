"""Where a bucket is, for what it costs to carry its bytes to a job."""
