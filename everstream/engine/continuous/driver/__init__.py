"""The driver: one loop between the coordinator and the workers."""
