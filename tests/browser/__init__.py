"""The report's page in a real browser: what runs in an environment of its own."""
