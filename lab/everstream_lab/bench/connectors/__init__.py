"""Sources and sinks against their bare clients: `everstream bench connectors`."""
