"""Measurements that can be run again: each prints its figures and keeps them with command, commit and versions."""
