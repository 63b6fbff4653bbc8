"""How workers and the driver exchange frames, credit and messages."""
