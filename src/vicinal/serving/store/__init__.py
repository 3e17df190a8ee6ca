"""The index of a service: searched and changed at the same time, and never lost."""
