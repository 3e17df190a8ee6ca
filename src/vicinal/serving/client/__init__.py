"""The client of a service."""
