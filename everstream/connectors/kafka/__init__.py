"""Kafka: source and transactional sink."""
