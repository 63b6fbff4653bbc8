"""The ways of programming an application that are compared: drivers over its plain stages."""
