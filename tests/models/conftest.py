"""No test of a model may reach the network."""

import socket

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(self, address):
        if self.family != socket.AF_UNIX:
            raise AssertionError(f"a test reached out to {address}")
        return connect(self, address)

    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", refuse)
