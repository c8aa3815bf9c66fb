"""Servers measured against each other over HTTP: arms in pairs, load by load, pass by pass."""
