"""HTTP: webhooks."""
